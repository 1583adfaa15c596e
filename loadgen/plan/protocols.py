"""How other tools drive a load: how many requests, whether all users begin at once, the warm-up, the spread of lengths.

Knows: the defaults of five tools, as facts about them. Must not know: what they compute (`analysis.conventions`).
Why: two tools that send different loads measure different things, and the opening burst alone moves TTFT more than most
changes of a server. A run by another tool's protocol can be laid beside that tool's table.

Sources: `Protocol.source`. Nothing of the tools' code or wording is here.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.errors import UsageError
from loadgen.model import Load
from loadgen.plan.lengths import Length, parse_length


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a tool does where its user says nothing.

    per_user, least: requests of a stage are `per_user` for each user, at least `least`.
    duration_ns: length of a stage's window in place of a number of requests; None: requests are counted.
    warmup, warmup_per_user: unmeasured requests before a workload's first stage, for each of its most users.
    burst: all users of a closed loop begin at once.
    shortest: a length that is asked as a number is drawn from [shortest, 1] x that number; 1: it is taken as it is.
    open_loop: requests are due by a schedule, never by a free user.
    """

    per_user: int
    least: int
    burst: bool
    source: str
    warmup: int = 0
    warmup_per_user: int = 0
    shortest: float = 1.0
    duration_ns: int | None = None
    open_loop: bool = False

    def requests(self, load: Load) -> int | None:
        """Requests of a stage at this load; None where the stage is as long as `duration_ns`."""
        return None if self.duration_ns is not None else max(self.least, int(self.per_user * load.value))

    def warmups(self, users: float) -> int:
        """Unmeasured requests before a workload that has at most `users` users."""
        return self.warmup + int(self.warmup_per_user * users)

    def length(self, asked: Length) -> Length:
        """The lengths that the tool sends when it is asked for this one."""
        if asked.law != "fixed" or self.shortest == 1.0:
            return asked
        return parse_length(f"uniform:{max(1, int(asked.a * self.shortest))}..{int(asked.a)}")


PROTOCOLS: dict[str, Protocol] = {
    "native": Protocol(4, 32, False, "loadgen", warmup=4),
    "vllm": Protocol(
        0, 1000, True, "vllm-project/vllm, vllm/benchmarks/serve.py (1,000 prompts, one trial request), Apache-2.0", 1
    ),
    "guidellm": Protocol(
        4, 32, True, "vllm-project/guidellm, README.md (profile concurrent; it has no default number), Apache-2.0"
    ),
    "aiperf": Protocol(2, 10, True, "ai-dynamo/aiperf, docs (request count max(10, 2 x concurrency)), Apache-2.0"),
    "inferencemax": Protocol(
        10,
        10,
        True,
        "InferenceMAX, README.md (10 prompts for each user, RANDOM_RANGE_RATIO 0.8, ignore-eos), Apache-2.0",
        warmup_per_user=2,
        shortest=0.8,
    ),
    "mlperf": Protocol(
        0,
        0,
        False,
        "mlcommons/inference, loadgen, mlperf.conf (Server: Poisson, min_duration 600 s), Apache-2.0",
        duration_ns=600_000_000_000,
        open_loop=True,
    ),
}


def checked(name: str, closed: bool) -> Protocol:
    """The protocol of that name. Raises UsageError where it cannot drive a closed loop."""
    protocol = PROTOCOLS[name]
    if protocol.open_loop and closed:
        raise UsageError(f"--protocol {name} is an open loop", do="give --rate, such as --rate 4")
    return protocol
