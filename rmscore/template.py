"""Render a conversation with the checkpoint's chat template, in a sandbox, as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rmscore.errors import CheckpointError, RowError
from rmscore.tokenizer import special_texts

if TYPE_CHECKING:
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Message

Render = Callable[[Sequence["Message"]], str]


def template_source(model: RewardModel) -> str | None:
    """Return the chat template's text: ``chat_template.jinja``, else the tokenizer configuration's, else None."""
    path = model.folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = model.tokenizer_config.get("chat_template")
    if isinstance(found, list):  # several named templates: transformers takes the one called "default"
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def load_template(model: RewardModel) -> Render | None:
    """Return a function from messages to text, or None where the checkpoint has no chat template."""
    source = template_source(model)
    if source is None:
        return None
    try:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise CheckpointError(f"{model.folder}: its chat template needs jinja2: pip install 'rmscore[chat]'") from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    # the environment transformers renders with (utils/chat_template_utils.py, _compile_jinja_template)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005
    try:
        compiled = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise CheckpointError(f"{model.folder}: the chat template does not compile ({error})") from error
    names: dict[str, Any] = special_texts(model)

    def render(turns: Sequence[Message]) -> str:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return compiled.render(messages=messages, add_generation_prompt=False, tools=None, documents=None, **names)
        except jinja2.TemplateError as error:
            raise RowError(f"the chat template refuses this conversation ({error})") from error

    return render
