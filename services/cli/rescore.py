"""The command that scores a run's rollouts again. `main` makes a command of it."""

from streamrl.services.cli.options import Json, Rest, find


def rescore(run: str, *rest: Rest, reward: str | None = None, as_json: Json = False) -> int:
    """Score what a run has generated again, with another reward; generate nothing.

    The run must not be up. What it has not trained yet learns from the new scores, and it goes on with the new reward.
    Other keys of the reward follow by their path: `streamrl rescore RUN --reward.options '{ gsm8k = { method = "strict"
    } }'`.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`.
    reward
        A built-in reward or `module:function`; the run's own, as its code is now, when absent.
    as_json
        Print what was done as JSON.
    """
    from streamrl.services.commands.rescore import main

    return main(find(run), reward, rest, as_json=as_json)
