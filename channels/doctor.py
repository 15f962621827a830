"""What must be true around Lastword before it can keep its promise, and what to do where it is not.

What belongs here: looking at Redis, providers, folders and import names, and naming the fix. What must not be known
here: how the findings are shown.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import packages_distributions
from pathlib import Path

import redis.asyncio
from redis.exceptions import RedisError

from channels.endpoints.vault import Sealed, Vault, check_stored
from channels.kept_secrets import openness
from channels.settings import SECRET_FILE, Settings
from channels.vault_section import KEYS_FILE, OF_ALL
from worker.app import make_app
from worker.codecs.messages import Request, UserMessage
from worker.codecs.wires import codec_of
from worker.errors import ConfigurationError
from worker.guard import Guard, guard_operator
from worker.http import HTTP_FAULTS, classify, open_client, read_start
from worker.sections import ProviderSettings
from worker.sources import nearest
from worker.store.health import HealthRules, standings
from worker.store.server import ServerFacts, server_facts, shortcomings
from worker.tools.shelf import ToolShelf

_OLDEST_SERVER = (7, 0)
_REDIS_LIMIT_S = 5.0
_PROVIDER_LIMIT_S = 15.0
_MODELS_LIMIT_BYTES = 4_000_000
_NOT_THERE = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `fix` says what to do. A good one with a fix is a note: all works, but something may surprise."""

    name: str
    good: bool
    finding: str
    fix: str = ""


def check_imports() -> list[Check]:
    """Whether `worker` and `channels` are ours and nobody else's in this environment."""
    checks = []
    for name in ("worker", "channels"):
        ours = Path(str(sys.modules[name].__file__)).resolve()
        others = set(packages_distributions().get(name, ())) - {"lastword"}
        # `python -m celery` looks into the working directory first, even where this process does not.
        places = [Path.cwd(), *(Path(entry or ".") for entry in sys.path)]
        paths = {(place / file).resolve() for place in places for file in (f"{name}/__init__.py", f"{name}.py")}
        strangers = sorted(str(path) for path in paths if path != ours and path.is_file())
        if others or strangers:
            who = ", ".join([*sorted(others), *strangers])
            fix = "install Lastword in an environment of its own, and start it in a working directory without a "
            fix += "`worker` or a `channels` of another program"
            checks.append(Check(f"package {name}", False, f"another package has this name: {who}", fix))
        else:
            checks.append(Check(f"package {name}", True, str(ours.parent)))
    return checks


def check_data_dir(folder: Path) -> Check:
    """Whether the data folder can be written."""
    probe = folder / f".doctor-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as error:
        fix = "correct its rights, or set data_dir (LASTWORD_DATA_DIR) to a folder that can be written"
        return Check("data_dir", False, f"{folder} cannot be written: {getattr(error, 'strerror', error)}", fix)
    return Check("data_dir", True, str(folder))


async def check_redis(client: redis.asyncio.Redis) -> list[Check]:
    """Whether Redis answers, is new enough, takes writes, keeps what it acknowledged and evicts nothing."""
    try:
        async with asyncio.timeout(_REDIS_LIMIT_S):
            facts = await server_facts(client)
    except (RedisError, OSError) as error:
        fix = "start it, or correct redis_url (LASTWORD_REDIS_URL); unset, an embedded server is used"
        return [Check("redis", False, f"it did not answer ({type(error).__name__})", fix)]
    return list(redis_checks(facts))


def redis_checks(facts: ServerFacts) -> Iterator[Check]:
    """What a server says about itself, as findings."""
    info = facts.info
    kind = str(info.get("server_name", "redis"))
    version = str(info.get(f"{kind}_version", info.get("redis_version", "0")))
    new_enough = tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= _OLDEST_SERVER
    yield Check(
        "redis version", new_enough, f"{kind} {version}", "" if new_enough else "use Redis 7 or Valkey, or newer"
    )
    short = list(shortcomings(facts))
    good = {
        "persistence": "appendonly is on",
        "durability": "WAITAOF is known: what is acknowledged is on disk",
        "eviction": str(info.get("maxmemory_policy")),
    }
    for about, finding in good.items():
        if about not in {one.about for one in short}:
            yield Check(f"redis {about}", True, finding)
    for one in short:
        yield Check(f"redis {one.about}", not one.serious, one.finding, one.fix)


async def check_broker(settings: Settings) -> list[Check]:
    """Whether a broker that is not the Redis itself answers."""
    if settings.broker_url is None or settings.broker_url == settings.redis_url:
        return []
    connection = make_app(settings, concurrency=1).connection_for_write()
    try:
        async with asyncio.timeout(_REDIS_LIMIT_S):
            await asyncio.to_thread(connection.ensure_connection, max_retries=1, timeout=round(_REDIS_LIMIT_S))
            await asyncio.to_thread(connection.release)
    except Exception as error:  # noqa: BLE001 - each transport has exceptions of its own
        fix = "start it, or correct broker_url (LASTWORD_BROKER_URL); unset, redis_url is used"
        return [Check("broker", False, f"it did not answer ({type(error).__name__})", fix)]
    return [Check("broker", True, "it answers")]


def check_secret(settings: Settings) -> list[Check]:
    """Whether processes that share a Redis, and so may run on several machines, sign with one secret."""
    if settings.redis_url is None or settings.delivery.secret is not None:
        return []
    bare = sorted(name for name, endpoint in settings.endpoints.items() if endpoint.secret is None)
    who = ", ".join([*bare, "plain URLs"])
    finding = f"what goes to {who} is signed with a secret that each machine makes for itself in data_dir"
    return [Check("webhook secret", True, finding, "on several machines set delivery.secret to the same on each")]


def check_vault(settings: Settings) -> list[Check]:
    """Whether processes that share a Redis, and so may run on several machines, encrypt with one key."""
    if settings.redis_url is None or settings.vault.keys:
        return []
    finding = "secrets of stored endpoints are encrypted with a key that each machine makes for itself in data_dir"
    fix = f"on several machines copy {KEYS_FILE} of the first one, and name it in vault.keys_file on each"
    return [Check("vault", True, finding, fix)]


def check_secret_files(settings: Settings) -> list[Check]:
    """Whether files that hold secrets can be read, or changed, by others than their owner."""
    made = [openness(settings.data_dir / name) for name in (SECRET_FILE, KEYS_FILE)]
    named = [] if settings.vault.keys_file is None else [openness(settings.vault.keys_file, OF_ALL)]
    faults = [fault.partition(": ") for fault in (*made, *named) if fault]
    return [Check("secret file", False, finding, fix) for finding, _, fix in faults]


def check_sealed(vault: Vault, stored: Sequence[Sealed]) -> list[Check]:
    """Whether the secrets that are stored can be decrypted."""
    try:
        check_stored(vault, stored)
    except ConfigurationError as error:
        return [Check("vault", False, finding, f"see {vault.place}") for finding in str(error).splitlines()]
    return [Check("vault", True, f"{len(stored)} stored secrets can be decrypted")]


async def check_tools(settings: Settings) -> list[Check]:
    """Whether the tools of packages and MCP servers can be had."""
    shelf = ToolShelf(settings.mcp, settings.tools, guard_operator(settings.egress))
    try:
        shown = await shelf.everything()
    finally:
        await shelf.close()
    if not shown.faults:
        return [Check("tools", True, f"{len(shown.tools)} can be offered")]
    return [Check("tools", False, str(fault), "`lastword tools list` shows what there is") for fault in shown.faults]


async def check_providers(settings: Settings) -> list[Check]:
    """Whether each provider answers, takes the key and knows the models that are asked of it."""
    if not settings.providers:
        fix = "set LASTWORD_PROVIDERS__MAIN__BASE_URL and LASTWORD_PROVIDERS__MAIN__MODEL, or [providers.main]"
        return [Check("providers", False, "none is set", fix)]
    checks, guard = [], guard_operator(settings.egress)
    for name, provider in settings.providers.items():
        asked = [agent.model or provider.model for agent in settings.agents.values() if agent.provider == name]
        models = sorted({model for model in [*asked, provider.model] if model})
        checks.append(await _check_provider(name, provider, models, guard))
    return checks


async def check_provider_health(client: redis.asyncio.Redis, settings: Settings) -> list[Check]:
    """Which providers all processes leave alone just now."""
    health = settings.provider_health
    rules = HealthRules(health.deaths, health.window_s, health.skip_s)
    try:
        found = await standings(client, settings.providers, rules)
    except (RedisError, OSError):
        return []  # `check_redis` tells of it
    fix = "see to the server; it is asked again by itself (provider_health says when)"
    return [
        Check(
            f"provider {name}",
            True,
            f"skipped for {one.left_s:.0f} s wherever another can be asked: {one.counts.deaths} attempts died of it, "
            f"{one.counts.completions} calls completed",
            fix,
        )
        for name, one in found.items()
        if one.left_s is not None
    ]


async def _check_provider(name: str, provider: ProviderSettings, models: Sequence[str], guard: Guard) -> Check:
    title, url = f"provider {name}", f"{provider.base_url}/models"
    codec = codec_of(provider.wire)
    question = codec.encode(Request("", (UserMessage("?"),)))
    headers = dict(question.headers)
    if provider.api_key is not None:
        headers |= codec.authorization(provider.api_key.get_secret_value())
    headers |= {header.lower(): value.get_secret_value() for header, value in provider.headers.items()}
    try:
        async with (
            asyncio.timeout(_PROVIDER_LIMIT_S),
            open_client(connect_timeout_s=provider.connect_timeout_s, guard=guard) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            status = response.status_code
            body = await read_start(response.aiter_raw(), _MODELS_LIMIT_BYTES, _PROVIDER_LIMIT_S)
            if status in _NOT_THERE:  # an empty request asks no model, but is no unknown place where the wire is spoken
                asked = await client.post(f"{provider.base_url}{question.path}", headers=headers, json={})
                if asked.status_code in _NOT_THERE:
                    return _misplaced(title, name, url, question.path, status)
    except TimeoutError:
        return Check(
            title,
            False,
            f"{url} did not answer within {_PROVIDER_LIMIT_S:g} s",
            f"see to the server, or correct {_of(name)}",
        )
    except HTTP_FAULTS as error:
        return Check(title, False, f"{url}: {classify(error).message}", f"start the server, or correct {_of(name)}")
    return judged(title, name, status, body, models)


def judged(title: str, name: str, status: int, body: bytes, models: Sequence[str]) -> Check:
    """What a provider's answer to `GET /models` says about it."""
    if status in (401, 403):
        return Check(title, False, f"it refused the key (HTTP {status})", f"correct providers.{name}.api_key")
    if status in _NOT_THERE:
        return Check(title, True, f"it answers, but lists no models (HTTP {status}): {', '.join(models)} not checked")
    if status != HTTPStatus.OK:
        return Check(title, False, f"it answered HTTP {status}", f"see to the server, or correct {_of(name)}")
    try:
        known = [str(one["id"]) for one in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return Check(title, False, "its answer is no list of models", f"correct {_of(name)}; it usually ends in /v1")
    missing = [model for model in models if model not in known]
    if missing:
        fix = f"correct the model; {nearest(missing[0], known)}"
        return Check(title, False, f"it does not know the model {', '.join(missing)}", fix)
    return Check(title, True, f"it answers and knows {', '.join(models) or f'{len(known)} models'}")


def _misplaced(title: str, name: str, url: str, path: str, status: int) -> Check:
    finding = f"{url} and {path.lstrip('/')} beside it are unknown there (HTTP {status})"
    return Check(title, False, finding, f"correct {_of(name)}; it often ends in /v1")


def _of(name: str) -> str:
    return f"providers.{name}.base_url"
