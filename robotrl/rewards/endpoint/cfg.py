"""Settings of a vision-language model that is asked over HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.rewards.endpoint.address import parse_address

ReplyFormat = Literal["json_schema", "json_object", "text"]
REPLY_FORMATS: tuple[ReplyFormat, ...] = ("json_schema", "json_object", "text")
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHORTEST_S, LONGEST_S = 0.01, 86400.0
LARGEST_ANSWER = 1 << 26


@dataclass(frozen=True)
class EndpointCfg:
    """A served vision-language model: address, time limits, faults, budget. The key itself is never a setting."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """Address before "/chat/completions", http or https; the default is that of a vLLM server on this machine."""
    model: str = ""
    """Name by which the server knows the model."""
    key_env: str | None = None
    """Name of the environment variable that holds the key, read whenever a request is sent. None: no key."""
    timeout_s: float = 60.0
    """Time limit of an answer from its submission, queue and retries included, s, 0.01 to 86400; a later one is
    discarded."""
    call_timeout_s: float = 30.0
    """Time limit of one HTTP call, s, 0.01 to 86400."""
    retries: int = 2
    """Further calls after status 429 or 5xx, a lost connection or a call that took too long; 0 to 100."""
    backoff_s: float = 0.5
    """Wait before the first retry, s, 0 to 86400; it doubles each time, unless the server says how long to wait."""
    concurrency: int = 4
    """Calls at the same time, 1 to 256."""
    queue_size: int = 256
    """Bound on requests that wait or are being answered, 1 to 1048576; more are dropped."""
    max_answer_bytes: int = 65536
    """Largest accepted answer, bytes, 64 to 67108864; no more is read."""
    max_tokens: int = 64
    """Largest number of tokens that the model may answer with, 1 to 1000000."""
    temperature: float = 0.0
    """Sampling temperature, 0 to 2."""
    reply_format: ReplyFormat = "json_schema"
    """Request for JSON: by a schema, as any JSON object, or only in the prompt ("text"), for servers that know no
    `response_format`."""
    max_requests: int | None = None
    """Budget: HTTP calls in the whole run, retries included, 0 or more. None: no limit."""
    max_cost: float | None = None
    """Budget: cost of the whole run by the prices below; only calls under way when it is reached may exceed it. None:
    no limit."""
    prompt_price: float = 0.0
    """Price of 1000 prompt tokens, in the currency of `max_cost`."""
    answer_price: float = 0.0
    """Price of 1000 tokens of the answer."""
    answers: str | None = None
    """Directory in which answers are kept by a hash of their request, so that nothing is paid for twice. None: the
    folder `answers` of the run that trains; outside a run they are kept in memory only."""

    def kept_in(self, directory: str | None) -> EndpointCfg:
        """These settings, with a directory of answers where they name none; None leaves them as they are."""
        return self if self.answers is not None else replace(self, answers=directory)

    def check(self, field: str = "endpoint") -> None:
        """Check the ranges.

        Args:
            field: name of these settings, for errors.

        Raises:
            ConfigError: a field is out of range.
        """
        parse_address(self.base_url, f"{field}.base_url")
        if not self.model.strip():
            raise out_of_range(f"{field}.model", self.model, "the name by which the server knows the model")
        if self.key_env is not None and not ENVIRONMENT_NAME.fullmatch(self.key_env):
            # not shown: somebody may have put the key itself here
            raise ConfigError(f"{field}.key_env is not a name: expected the name of the environment variable")
        check_number(f"{field}.timeout_s", self.timeout_s, SHORTEST_S, LONGEST_S, "s")
        check_number(f"{field}.call_timeout_s", self.call_timeout_s, SHORTEST_S, LONGEST_S, "s")
        check_count(f"{field}.retries", self.retries, 0, 100)
        check_number(f"{field}.backoff_s", self.backoff_s, 0.0, LONGEST_S, "s")
        check_count(f"{field}.concurrency", self.concurrency, 1, 256)
        check_count(f"{field}.queue_size", self.queue_size, 1, 1 << 20)
        check_count(f"{field}.max_answer_bytes", self.max_answer_bytes, 64, LARGEST_ANSWER, "bytes")
        check_count(f"{field}.max_tokens", self.max_tokens, 1, 1_000_000)
        check_number(f"{field}.temperature", self.temperature, 0.0, 2.0)
        if self.reply_format not in REPLY_FORMATS:
            raise unknown(f"{field}.reply_format", str(self.reply_format), REPLY_FORMATS)
        if self.max_requests is not None:
            check_count(f"{field}.max_requests", self.max_requests, 0, 2**63 - 1)
        if self.max_cost is not None:
            check_number(f"{field}.max_cost", self.max_cost, 0.0, 1e12)
            if not self.prompt_price and not self.answer_price:
                raise out_of_range(
                    f"{field}.max_cost", self.max_cost, f"{field}.prompt_price or answer_price above 0 with it"
                )
        check_number(f"{field}.prompt_price", self.prompt_price, 0.0, 1e9)
        check_number(f"{field}.answer_price", self.answer_price, 0.0, 1e9)
        if self.answers is not None and not self.answers.strip():
            raise out_of_range(f"{field}.answers", self.answers, "the name of a directory, or nothing")
