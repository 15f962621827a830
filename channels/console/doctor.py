"""`lastword doctor`: the findings of `channels.doctor`, for people and for programs.

What belongs here: their form. What must not be known here: what is looked at.
"""

import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from channels import doctor, endpoint_checks, hook_checks
from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.doctor import Check
from channels.settings import Settings
from worker.errors import ConfigurationError


def run_doctor(settings: Settings, *, as_json: bool) -> int:
    """Look at everything; the exit code is 0 only if all is good."""
    checks = [*doctor.check_imports(), doctor.check_data_dir(settings.data_dir)]
    checks += [*doctor.check_secret(settings), *doctor.check_vault(settings), *hook_checks.check_given(settings)]
    checks += [*endpoint_checks.check_given(settings), *doctor.check_secret_files(settings)]

    async def redis_and_providers(_: Joined, client: Client) -> int:
        checks.extend(await doctor.check_redis(client))
        checks.extend(await doctor.check_broker(settings))
        checks.extend(await endpoint_checks.check_stored(client, settings))
        checks.extend(await hook_checks.check_receivers(client, settings))
        checks.extend(await doctor.check_tools(settings))
        checks.extend(await doctor.check_providers(settings))
        checks.extend(await doctor.check_provider_health(client, settings))
        return exits.OK

    try:
        ask(settings, redis_and_providers)
    except (ConfigurationError, OSError) as error:
        checks.append(Check("redis", good=False, finding=str(error), fix="see the message"))
    good = all(check.good for check in checks)
    if as_json:
        sys.stdout.write(json.dumps({"good": good, "checks": [asdict(check) for check in checks]}) + "\n")
    else:
        _print(checks)
    return exits.OK if good else exits.FAILED


def _print(checks: list[Check]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        kind, style = ("FAULT", "bold red") if not check.good else ("note", "yellow") if check.fix else ("ok", "green")
        mark = (f"{kind:<6}", style)
        console.print(Text.assemble(mark, (f"{check.name}: ", "bold"), check.finding))
        if check.fix:
            console.print(Text.assemble("      ", ("fix: ", "bold"), check.fix))
