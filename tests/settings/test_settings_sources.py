import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from channels.console.settings import explain
from channels.settings import Settings, load_explained, load_settings
from worker.errors import ConfigurationError
from worker.settings import WorkerSettings
from worker.settings import load_settings as load_worker_settings

Write = Callable[[str], Path]

PROVIDER = '[providers.main]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
CANARY = "canary-4f1b"
SIGNING = "whsec_" + base64.b64encode(b"canary-secret-of-32-bytes-length").decode()


def refusal(write: Write, text: str) -> str:
    write(text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    return str(caught.value)


@pytest.mark.requirement("settings:sources:environment-alone")
def test_two_variables_are_enough_for_a_default_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__BASE_URL", "http://127.0.0.1:8080/v1/")
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__MODEL", "small")
    settings = load_settings()
    assert settings.agent("default").provider == "main"
    assert settings.providers["main"].base_url == "http://127.0.0.1:8080/v1"
    assert settings.providers["main"].model == "small"


def test_nothing_at_all_is_valid_and_names_the_first_step() -> None:
    with pytest.raises(ConfigurationError, match="LASTWORD_PROVIDERS__MAIN__BASE_URL"):
        load_settings().agent("default")


def test_the_default_agent_asks_the_only_provider(write: Write) -> None:
    write(PROVIDER.replace("main", "local"))
    assert load_settings().agent("default").provider == "local"


@pytest.mark.requirement("settings:sources:precedence")
def test_the_environment_outranks_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PROVIDER + "prefill_timeout_s = 700\n[turns]\nmax_calls = 7\nhistory_turns = 3\n")
    monkeypatch.setenv("LASTWORD_TURNS__MAX_CALLS", "9")
    settings = load_settings()
    assert (settings.turns.max_calls, settings.turns.history_turns) == (9, 3)
    assert settings.providers["main"].prefill_timeout_s == 700


def test_lists_and_tables_are_json_in_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PROVIDER)
    monkeypatch.setenv("LASTWORD_AGENTS__CLERK__TOOLS", '["clock"]')
    monkeypatch.setenv("LASTWORD_AGENTS__CLERK__EXTRA_BODY", '{"seed": 4}')
    monkeypatch.setenv("LASTWORD_DELIVERY__RETRY_WAITS_S", "[0.5, 1]")
    settings = load_settings()
    assert settings.agent("clerk").tools == ("clock",)
    assert settings.agent("clerk").extra_body == {"seed": 4}
    assert settings.delivery.retry_waits_s == (0.5, 1)


def test_json_that_is_none_is_refused_by_name(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PROVIDER)
    monkeypatch.setenv("LASTWORD_DELIVERY__RETRY_WAITS_S", "1, 2")
    with pytest.raises(ConfigurationError, match="LASTWORD_DELIVERY__RETRY_WAITS_S is to be a list"):
        load_settings()


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", "")
    monkeypatch.setenv("LASTWORD_NO_SUCH", "")
    assert load_settings().redis_url is None


def test_the_file_can_be_named_and_its_paths_are_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "agent.md").write_text("Be brief.\n", encoding="utf-8")
    (folder / "lw.toml").write_text(PROVIDER + '[agents.default]\ninstructions_file = "agent.md"\n', encoding="utf-8")
    monkeypatch.setenv("LASTWORD_CONFIG", str(folder / "lw.toml"))
    assert load_settings().agent("default").instructions == "Be brief."


def test_a_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_CONFIG", "no/such.toml")
    with pytest.raises(ConfigurationError, match=r"no/such\.toml cannot be read .*LASTWORD_CONFIG"):
        load_settings()


def test_broken_toml_names_file_and_line(write: Write) -> None:
    assert "lastword.toml is not TOML" in (words := refusal(write, "[turns\nmax_calls = 1\n"))
    assert "line 1" in words


@pytest.mark.requirement("settings:unknown:refused")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[trns]\nmax_calls = 1\n", "trns (lastword.toml:1) is no setting; did you mean 'turns'?"),
        ("[turns]\n\nmax_call = 1\n", "turns.max_call (lastword.toml:3) is no setting; did you mean 'max_calls'?"),
        (
            PROVIDER + 'bas_url = "x"\n',
            "providers.main.bas_url (lastword.toml:4) is no setting; did you mean 'base_url'?",
        ),
        ('[endpoints.a]\nurl = "http://x"\nzzzz = 1\n', "known names: burst, ca_file, cert_file"),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest_name(write: Write, text: str, words: str) -> None:
    assert words in refusal(write, text)


@pytest.mark.requirement("settings:unknown:refused")
@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("LASTWORD_REDIS_ULR", "LASTWORD_REDIS_URL"),
        ("LASTWORD_TURNS_MAX_CALLS", "LASTWORD_TURNS__MAX_CALLS"),
        ("LASTWORD_TURNS__MAX_CALL", "max_calls"),
    ],
)
def test_an_unknown_variable_names_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, variable: str, nearest: str
) -> None:
    monkeypatch.setenv(variable, CANARY)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert variable in str(caught.value)
    assert f"did you mean '{nearest}'?" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_the_worker_passes_over_sections_it_has_never_heard_of(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PROVIDER + '[endpoints.ops]\nurl = "http://hooks.example/h"\n')
    monkeypatch.setenv("LASTWORD_DELIVERY__TIMEOUT_S", "3")
    assert load_worker_settings().providers["main"].model == "m"


def test_the_worker_refuses_unknown_keys_of_its_own_sections(write: Write) -> None:
    write("[lease]\nttl = 9\n")
    with pytest.raises(ConfigurationError, match=r"lease\.ttl .*did you mean 'ttl_s'"):
        load_worker_settings()


def test_all_faults_are_told_at_once(write: Write) -> None:
    words = refusal(write, "[turns]\nmax_calls = 0\ncrash_cap = 99\n")
    assert "turns.max_calls = 0 (lastword.toml:2)" in words
    assert "(allowed: 1 to 10000 calls, default 100)" in words
    assert "turns.crash_cap = 99 (lastword.toml:3)" in words


def test_the_constructor_reads_nothing_but_its_arguments(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[turns]\nmax_calls = 7\n")
    monkeypatch.setenv("LASTWORD_TURNS__MAX_CALLS", "9")
    assert WorkerSettings().turns.max_calls == 100
    assert Settings().turns.max_calls == 100


@pytest.mark.requirement("settings:secrets:from-file")
def test_a_secret_may_be_in_a_file(write: Write, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{CANARY}\n", encoding="utf-8")
    write(PROVIDER + 'api_key_file = "key"\n')
    loaded = load_explained()
    key = loaded.settings.providers["main"].api_key
    assert key is not None
    assert key.get_secret_value() == CANARY
    row = next(row for row in explain(loaded) if row.name == "providers.main.api_key")
    assert (row.value, row.source) == ("set", f"secret file {tmp_path / 'key'}")


@pytest.mark.parametrize(
    ("content", "extra", "words"),
    [
        (b"x", 'api_key = "y"\n', "api_key and api_key_file are both set; remove one"),
        (b"\n", "", "is empty"),
        (b"\xff\xfe", "", "it is not UTF-8"),
        (None, "", "No such file"),
    ],
)
def test_a_secret_file_that_does_not_serve_is_named(
    write: Write, tmp_path: Path, content: bytes | None, extra: str, words: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    told = refusal(write, PROVIDER + 'api_key_file = "key"\n' + extra)
    assert "providers.main" in told
    assert words in told


@pytest.mark.requirement("settings:secrets:never-printed")
def test_no_secret_is_printed(write: Write) -> None:
    write(
        f'redis_url = "redis://:{CANARY}@127.0.0.1:6379/0"\nbroker_url = "amqp://u:{CANARY}@127.0.0.1"\n'
        f'sentry_dsn = "https://{CANARY}@127.0.0.1/1"\n'
        + PROVIDER
        + f'api_key = "{CANARY}"\nheaders = {{ X-Key = "{CANARY}" }}\n'
        + f'[agents.default]\nheaders = {{ X-Key = "{CANARY}" }}\n'
        + f'[endpoints.ops]\nurl = "http://hooks.example/{CANARY}?k={CANARY}"\nsecret = "{SIGNING}"\n'
        + f'headers = {{ X-Key = "{CANARY}" }}\nproxy = "http://u:{CANARY}@proxy.example:3128"\n'
        + f'previous_secrets = ["{SIGNING}"]\n'
        + f'[delivery]\nsecret = "{SIGNING}"\nproxy = "http://u:{CANARY}@proxy.example:3128"\n'
        + f'[mcp.a]\nurl = "http://127.0.0.1/{CANARY}?k={CANARY}"\nheaders = {{ X-Key = "{CANARY}" }}\n'
        + f'[mcp.b]\ncommand = ["server"]\nenv = {{ KEY = "{CANARY}" }}\n'
    )
    loaded = load_explained()
    shown = repr(loaded.settings) + str(loaded.settings) + repr(explain(loaded))
    shown += subprocess.run(
        [sys.executable, "-m", "channels", "settings", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    ).stdout
    assert CANARY not in shown
    assert SIGNING not in shown
    assert "redis://127.0.0.1:6379/..." in shown


@pytest.mark.requirement("settings:secrets:never-printed")
@pytest.mark.parametrize(
    "text",
    [
        f'redis_url = "rediss:/{CANARY}@x"\n',
        f'redis_url = "redis://:{CANARY}/{CANARY}@127.0.0.1"\n',
        f'[delivery]\nsecret = "{CANARY}"\n',
        f'[delivery]\nsecret = "whsec_{CANARY}"\n',
        f'[endpoints.a]\nurl = "http://127.0.0.1"\nsecrt = "{CANARY}"\n',
        f'[endpoints.a]\nurl = "http://u:{CANARY}@127.0.0.1"\n',
        f'[endpoints.a]\nurl = "http://127.0.0.1"\nheaders = {{ X = "{CANARY}\\n" }}\n',
        f'[providers.main]\nbase_url = "http://u:{CANARY}@127.0.0.1"\n',
        f'[providers.main]\nbase_url = "http://127.0.0.1?key={CANARY}"\n',
        f'[providers.main]\nbase_url = "http://127.0.0.1/{CANARY}?key=a"\n',
        f'[providers.main]\nbase_url = "http://127.0.0.1/{CANARY}#{CANARY}"\n',
        f'[providers.main]\nbase_url = "http://127.0.0.1:99999/{CANARY}"\n',
        f'[providers.main]\nbase_url = "http://u:a/{CANARY}@127.0.0.1"\n',
        f'[providers.main]\nbase_url = "u:{CANARY}@127.0.0.1/{CANARY}?{CANARY}"\n',
        f'[providers.main]\nbase_url = "htp://127.0.0.1/{CANARY}"\n',
        f'[endpoints.a]\nurl = "https://127.0.0.1/{CANARY}?token={CANARY}#{CANARY}"\n',
        f'[endpoints.a]\nurl = "htps://127.0.0.1/{CANARY}?token={CANARY}"\n',
        f'[endpoints.a]\nurl = "https://127.0.0.1/{CANARY} ?token={CANARY}"\n',
        f'[endpoints.a]\nurl = "https://127.0.0.1:99999/{CANARY}?token={CANARY}"\n',
        f'[endpoints.a]\nurl = "127.0.0.1/{CANARY}"\n',
        f'[providers.main]\nbase_url = "http://127.0.0.1"\napi_key = ["{CANARY}"]\n',
        f'[providers.main]\nbase_url = "http://127.0.0.1"\napi_kye = "{CANARY}"\n',
        f'[providers]\nmain = "{CANARY}"\n',
    ],
)
def test_no_refusal_repeats_a_secret(write: Write, text: str) -> None:
    assert CANARY not in refusal(write, text)


@pytest.mark.requirement("settings:values:refused")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[providers.main]\nwire = "grpc"', "providers.main.wire = 'grpc' (F:2): Input should be 'chat', 'responses'"),
        ('[providers.main]\nprofile = "lax"', "providers.main.profile = 'lax' (F:2): Input should be 'compat' or"),
        (
            "[providers.main.limits]\nline_bytes = 1",
            "providers.main.limits.line_bytes = 1 (F:2): Input should be greater than or equal to 1024 (allowed: 1024",
        ),
        (
            "[providers.main]\nlimits = { tool_call = 3 }",
            "limits.tool_call (F:2) is no setting; did you mean 'tool_calls'",
        ),
        ("[providers.main]\nreasoning_timeout_s = -1", "reasoning_timeout_s = -1 (F:2)"),
        ("[providers.main]\ncontext_tokens = 10", "(allowed: 256 to 100000000 tokens, default None)"),
        ('[providers.main]\nfallback = "A B"', "providers.main.fallback = 'A B' (F:2)"),
        ("[providers.main]\nextra_body = 3", "providers.main.extra_body = 3 (F:2): Input should be a valid dictionary"),
        ('[tools.clock]\napproval = "maybe"', "tools.clock.approval = 'maybe' (F:2): Input should be 'ask' or 'never'"),
        ("[tools.clock]\ntimeout_s = 0", "tools.clock.timeout_s = 0 (F:2)"),
        ('[tools.clock]\nretry_safe = "perhaps"', "tools.clock.retry_safe = 'perhaps' (F:2)"),
        ("[mcp.files]", "mcp.files (F:1): set either command (a program to start) or url"),
        ('[mcp.files]\ncommand = ["x"]\nurl = "http://h"', "mcp.files (F:1): set either command"),
        (
            f'[mcp.files]\ncommand = "x --key {CANARY}"',
            "mcp.files (F:1): command must be a list: the program and then each argument, as in [",
        ),
        ('[mcp.files]\ncommand = [""]', "the first entry of command is empty: it must name a program"),
        (f'[mcp.files]\ncommand = ["x"]\nenv = {{ "A=B" = "{CANARY}" }}', "mcp.files.env"),
        (
            f'[mcp.files]\ncommand = ["x"]\nheaders = {{ A = "{CANARY}" }}',
            "headers belong to url; remove them, or use env",
        ),
        (
            f'[mcp.files]\nurl = "http://h"\nenv = {{ A = "{CANARY}" }}',
            "env belongs to command; remove it, or use headers",
        ),
        (f'[mcp.files]\nurl = "htp://h/{CANARY}"', "mcp.files.url = 'htp://h/...' (F:2): it must begin with http://"),
        (
            f'[mcp.files]\nurl = "http://u:{CANARY}@h"',
            "mcp.files.url (F:2): it must not hold a user or password; use headers",
        ),
        (
            f'[mcp.files]\nurl = "http://h/{CANARY}#{CANARY}"',
            "mcp.files.url = 'http://h/...' (F:2): remove what follows '#'",
        ),
        (f'[mcp.files]\nurl = "http://h"\nheaders = {{ "A B" = "{CANARY}" }}', "'A B' is no header that may be set"),
        ('[mcp.files]\nurl = "http://h"\napproval = "no"', "mcp.files.approval = 'no' (F:3)"),
        ('[mcp.files]\nurl = "http://h"\nconnect_timeout_s = 0', "mcp.files.connect_timeout_s = 0 (F:3)"),
        ("[turns]\ntool_result_chars = 10", "(allowed: 200 to 10000000 characters, default 32000)"),
        ("[turns]\nempty_answer_nudges = -1", "turns.empty_answer_nudges = -1 (F:2)"),
        ("[turns]\nempty_answer_nudges_after_tools = 101", "turns.empty_answer_nudges_after_tools = 101 (F:2)"),
        ("[compaction]\nstrategy = 3", "compaction.strategy = 3 (F:2): Input should be a valid string"),
        ("[compaction]\nthreshold = 75", "compaction.threshold = 75 (F:2): Input should be less than or equal to 1"),
        ("[compaction]\nkeep_tool_results = -1", "compaction.keep_tool_results = -1 (F:2)"),
        ('[compaction]\nsummarise = "perhaps"', "compaction.summarise = 'perhaps' (F:2)"),
        ("[approvals]\nexpire_s = 0", "(allowed: 1 to 2592000 seconds, default 86400)"),
        ("[provider_health]\ndeaths = -1", "provider_health.deaths = -1 (F:2)"),
        ("[provider_health]\nwindow_s = 0", "provider_health.window_s = 0 (F:2)"),
        ("[provider_health]\nskip_s = 0", "provider_health.skip_s = 0 (F:2)"),
    ],
)
def test_a_value_that_cannot_be_taken_is_refused_with_field_value_place_and_fix(
    write: Write, text: str, words: str
) -> None:
    told = refusal(write, text)
    assert words.replace("(F:", "(lastword.toml:") in told
    assert CANARY not in told


def test_the_environment_of_a_server_keeps_the_case_of_its_names_in_json(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(PROVIDER + '[mcp.files]\ncommand = ["server"]\n')
    monkeypatch.setenv("LASTWORD_MCP__FILES__ENV", '{"API_KEY": "sesame"}')
    assert {name: value.get_secret_value() for name, value in load_settings().mcp["files"].env.items()} == {
        "API_KEY": "sesame"
    }


@pytest.mark.requirement("settings:explained:value-and-source")
def test_each_value_is_explained_with_unit_and_source(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PROVIDER + "\n[turns]\nmax_calls = 7\n[providers.main.limits]\ntool_calls = 9\n")
    monkeypatch.setenv("LASTWORD_TURNS__KEEP_S", "900000")
    rows = {row.name: row for row in explain(load_explained())}
    told = {name: (row.value, row.unit, row.source) for name, row in rows.items()}
    assert told["turns.max_calls"] == (7, "calls", "lastword.toml:6")
    assert told["turns.keep_s"] == (900000, "seconds", "environment LASTWORD_TURNS__KEEP_S")
    assert told["turns.crash_cap"] == (3, "crashes", "default")
    assert told["providers.main.limits.tool_calls"] == (9, "tool calls", "lastword.toml:8")
    assert told["providers.main.base_url"] == ("http://127.0.0.1:1/v1", "", "lastword.toml:2")
    assert told["providers.main.api_key"] == ("not set", "", "default")


def test_a_table_made_of_variables_is_explained_by_one_of_them(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(PROVIDER)
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__HEADERS__ORG", "a")
    monkeypatch.setenv("LASTWORD_TURNS", '{"max_calls": 4}')
    told = {row.name: (row.value, row.source) for row in explain(load_explained())}
    assert told["providers.main.headers"] == ("set", "environment LASTWORD_PROVIDERS__MAIN__HEADERS__ORG")
    assert told["turns.max_calls"] == (4, "environment LASTWORD_TURNS")
    assert told["turns.crash_cap"] == (3, "default")


@pytest.mark.parametrize("text", ["12345", '{"a": 1}', "[x]", "null", "true"])
def test_a_text_that_looks_like_json_stays_a_text(write: Write, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    write(PROVIDER)
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__API_KEY", text)
    monkeypatch.setenv("LASTWORD_AGENTS__CLERK__INSTRUCTIONS", text)
    settings = load_settings()
    key = settings.providers["main"].api_key
    assert key is not None
    assert (key.get_secret_value(), settings.agent("clerk").instructions) == (text, text)


def test_a_refused_base_url_is_shown_up_to_its_host(write: Write) -> None:
    told = refusal(write, '[providers.main]\nbase_url = "ftp://models.example/v1"\n')
    assert "providers.main.base_url = 'ftp://models.example/...' (lastword.toml:2): it must begin with http://" in told
