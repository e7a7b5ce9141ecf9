"""Serves a resources server of the published NeMo Gym package, `MODULE:CLASS`, on a free port, which it prints."""

import importlib
import socket
import sys

import uvicorn
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

module, name = sys.argv[1].split(":")
server_class = getattr(importlib.import_module(module), name)
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
port = listener.getsockname()[1]
config = server_class.model_fields["config"].annotation(
    name="served", host="127.0.0.1", port=port, entrypoint="app.py", domain="other"
)
head = BaseServerConfig(host="127.0.0.1", port=1)
client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
application = server_class(config=config, server_client=client).setup_webserver()
print(port, flush=True)
uvicorn.Server(uvicorn.Config(application, log_level="warning")).run(sockets=[listener])
