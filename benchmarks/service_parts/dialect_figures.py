"""What an answer costs in each dialect, beside the same of a chat: all at one rate, in turns."""

import statistics
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AsyncExitStack

import numpy as np
import psutil
from report import Report

from service_parts.dialects import CHAT, DIALECTS
from service_parts.load import Load
from streamrl.client.address import Address

MODEL = "bench"


async def each_dialect(
    report: Report, address: Address, gateway: psutil.Process, tokens: int, options: Namespace
) -> None:
    """At half of the rate that saturates chats."""
    headers = {"authorization": f"Bearer {address.token}"}
    async with AsyncExitStack() as stack:
        loads = {
            name: await stack.enter_async_context(
                Load(f"{address.url}{one.path}", headers, one.body(MODEL, tokens), one.ends)
            )
            for name, one in DIALECTS.items()
        }
        for load in loads.values():
            await load.at_once(options.clients)  # what the first answers start, they pay for
        saturated = await loads[CHAT].rate(options.clients, options.seconds)
        report.add(f"chats a second that {options.clients} clients get", saturated, "1/s")
        await _in_turns(report, loads, gateway, saturated / 2, options)


async def _in_turns(
    report: Report, loads: Mapping[str, Load], gateway: psutil.Process, rate: float, options: Namespace
) -> None:
    tails: dict[str, list[float]] = {name: [] for name in loads}
    spent: dict[str, list[float]] = {name: [] for name in loads}
    errors = 0
    for _ in range(options.rounds):
        for name, load in loads.items():
            before = gateway.cpu_times()
            answers = await load.at_rate(rate, options.seconds)
            after = gateway.cpu_times()
            errors += len(answers.errors)
            tails[name].append(float(np.percentile(answers.seconds or [np.inf], 99)))
            cpu_s = after.user + after.system - before.user - before.system
            spent[name].append(1e3 * cpu_s / max(1, len(answers.seconds)))
    report.add("errors of all dialects at half of that rate", errors, "", at_most=0)
    for name in loads:
        report.add(f"CPU time of the gateway for an answer, {name}", statistics.median(spent[name]), "ms")
    for name in loads:
        if name != CHAT:
            ratio = statistics.median(one / chat for one, chat in zip(tails[name], tails[CHAT], strict=True))
            report.add(f"p99 of an answer, {name} over chat", ratio, "x", at_most=1.1)
            ratio = statistics.median(one / chat for one, chat in zip(spent[name], spent[CHAT], strict=True))
            report.add(f"CPU time of the gateway for it, {name} over chat", ratio, "x")
