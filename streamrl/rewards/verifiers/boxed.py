"""What a text puts in a box, as answers to mathematics do."""


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` or `\\fbox{...}` of a text holds, braces balanced; `\\boxed 7`, too. None without
    one, and where it breaks off."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix("\\boxed").removeprefix("\\fbox").lstrip(" ")
    if not rest.startswith("{"):
        return rest.split("$")[0].strip().split(" ")[0] or None
    depth = 0
    for place, letter in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return rest[1:place]
    return None
