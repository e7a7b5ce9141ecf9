"""What a folder says of its imports, and what that allows."""

import pytest
from support.folder_contract import allowed, said


def test_the_sentence_about_imports_names_modules() -> None:
    assert said("What is here.\nIt imports `a.b` and `c`, and torch.\nNo `d`.") == ("a.b", "c")
    assert said("What is here.\nIts folders import `a`.\nNo b.") == ("a",)
    assert said("It imports `a`. Only `b` needs torch.") == ("a",)
    assert said("What is here.\nNo b.") is None


@pytest.mark.parametrize(
    ("target", "may"),
    [
        ("streamrl.weights.manifest", True),
        ("streamrl.engines.torch.cuda.pages", True),
        ("streamrl.engines.torch.slots", True),
        ("streamrl.engines.base", True),
        ("streamrl.types", True),
        ("streamrl.engines.server.contract", False),
        ("streamrl.weightsmith", False),
        ("streamrl.services.run", False),
        ("streamrl.buffers", False),
    ],
)
def test_a_name_stands_for_what_is_below_it(target: str, may: bool) -> None:
    assert allowed("streamrl.engines.torch.cuda", ("streamrl.weights",), target) is may
