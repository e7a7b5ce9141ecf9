"""The program that runs lm-evaluation-harness: an order of JSON on its standard input, the answer in a file.

It is a process of its own because the package brings much with it, and may end as it likes. Nothing else of streamrl is
imported here.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

EXIT_CONFIG = 2


def main() -> int:
    """`harness_program ANSWER.json`. Returns the exit code: 2 for an order that names what there is not."""
    order, place = json.load(sys.stdin), Path(sys.argv[1])
    answer = evaluate(order)
    place.write_text(json.dumps(answer, default=str), encoding="utf-8")
    return EXIT_CONFIG if "error" in answer else 0


def evaluate(order: dict[str, Any]) -> dict[str, Any]:
    """What the harness makes of an order, or `error`."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=order["include"] or None)
    unknown = [name for name in order["tasks"] if not manager.match_tasks([name])]
    if unknown:
        what = f"lm-eval has no task {', '.join(map(repr, unknown))}"
        return {"error": f"{what}; `lm_eval ls tasks` lists them, and --include FOLDER adds your own"}
    results = lm_eval.simple_evaluate(
        model=_model(order),
        tasks=order["tasks"],
        task_manager=manager,
        limit=order["limit"],
        apply_chat_template=order["chat"],
        log_samples=False,
    )
    scores = {**results["results"], **results.get("groups", {})}
    return {"results": scores, "version": version("lm_eval")}


def _model(order: dict[str, Any]) -> Any:
    from lm_eval.api.registry import get_model

    return get_model("local-completions")(
        model=order["model"],
        base_url=order["base_url"],
        tokenizer=order["tokenizer"],
        tokenizer_backend="huggingface",
        header={"Authorization": f"Bearer {order['token']}"},
        ca_cert_path=order["ca"],
        max_length=order["max_length"],
        max_gen_toks=order["max_gen_toks"],
        num_concurrent=order["num_concurrent"],
        max_retries=5,
    )


if __name__ == "__main__":
    sys.exit(main())
