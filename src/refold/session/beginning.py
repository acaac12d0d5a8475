"""Beginning: what a session is made from: its home, settings, model and surroundings, and what it inherits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from refold.core.compaction.shadow import MAKER
from refold.core.compaction.whole import whole
from refold.core.config import Config
from refold.core.records import JSON, Record, SettingsApplied, WorldObserved
from refold.core.thread import Thread
from refold.errors import ConfigError
from refold.model import Model
from refold.observe import Surroundings
from refold.session.events import Notice
from refold.session.home import DEFAULT_MODEL, Home, model_named
from refold.session.permits import Approve
from refold.tools import Tool


def home_and_settings(home: str | Path | None, config: Config | None) -> tuple[Home, Config]:
    """refold's folder and the settings in force. Raises ConfigError."""
    found = Home.find() if home is None else Home.find({**os.environ, "REFOLD_HOME": str(home)})
    return found, config if config is not None else found.config()


def model_name(asked: str | None, config: Config, thread: Thread | None = None) -> str:
    """The model asked for, else the configured one, else the one that the session went on with last."""
    last = (thread.settings or {}).get("model") if thread else None
    return asked or config.model or (last if isinstance(last, str) and last else None) or DEFAULT_MODEL


def model_for(model: str | Model | None, config: Config, thread: Thread | None = None) -> Model:
    """The model that answers: the given one, or the one that a name means. Raises ConfigError."""
    if model is not None and not isinstance(model, str):
        return model
    return model_named(model_name(model, config, thread), config)


def answering_model(model: str | Model | None, config: Config, thread: Thread | None = None) -> Model:
    """The same, once whoever writes its summaries was found to exist. Raises ConfigError."""
    found, asked = model_for(model, config, thread), config.compaction
    if asked.model or asked.provider or asked.effort:
        from refold.session.rungs.summariser import summariser_of

        summariser_of(config, found)
    return found


def first_notices(model: Model, read: Thread | None = None) -> tuple[Notice, ...]:
    """What a person should know before the first turn: that the facts about the model are a guess, and that not all of
    the session that was read could be."""
    profile, texts = model.profile, list[str]()
    if not profile.known:
        window = f"{profile.context_window:,} tokens" if profile.context_window else "unknown"
        texts.append(
            f"{profile.slug} is not a model I know: its context window is taken as {window}; set model_context_window"
        )
    if read is not None and read.damaged:
        lines = "1 line" if read.damaged == 1 else f"{read.damaged} lines"
        texts.append(f"{lines} of {read.id} could not be read whole; see: refold doctor {read.id}")
    return tuple(map(Notice, texts))


def directory(cwd: str) -> str:
    """An absolute folder that exists. Raises ConfigError."""
    path = Path(cwd).expanduser()
    if not path.is_dir():
        raise ConfigError("cwd", f"{path} is not a folder that exists; choose another one (--cd)")
    return str(path.absolute())


def directory_of(thread: Thread, asked: str | Path | None) -> str:
    """Where a resumed session works: where its last turn did, unless the caller asks for another place."""
    last = (thread.settings or {}).get("cwd")
    begun = thread.meta.cwd if thread.meta else ""
    return directory(str(asked or (last if isinstance(last, str) and last else None) or begun or Path.cwd()))


def surroundings(cwd: str, home: Home, config: Config, tools: Sequence[Tool], approve: Approve | None) -> Surroundings:
    """Where to look, and what is permitted there: by the settings, else by whether commands can run at all."""
    commands = any(tool.needs_approval for tool in tools)
    asks = config.approval_policy in ("on-request", "on-failure")  # to leave a sandbox: so there is one
    free = "workspace-write" if asks else "danger-full-access"
    return Surroundings(
        cwd=cwd,
        home=str(home.path),
        sandbox_mode=config.sandbox_mode or (free if commands else "read-only"),
        approval_policy=config.approval_policy or ("untrusted" if approve else "never"),
        reviewer=config.approvals_reviewer if approve else "none",
        developer_instructions=config.developer_instructions or "",
        project_doc_max_bytes=config.project_doc_max_bytes,
        project_doc_fallback_filenames=config.project_doc_fallback_filenames,
        tell_permissions=config.include_permissions_instructions,
        tell_environment=config.include_environment_context,
        skills=config.skills,
    )


def inheritance(parent: Thread) -> list[Record]:
    """One checkpoint that holds a parent's whole active state, so that the child needs no other file."""
    checkpoint = whole(parent)
    facts: JSON = {"waits": True} if parent.is_as_restored else {}
    if parent.meta and parent.sealed:  # who made what only its maker can read, also where no shadow says it
        facts[MAKER] = parent.meta.provider
    records: list[Record] = [replace(checkpoint, facts={**facts, **checkpoint.facts})]
    records += [WorldObserved(True, parent.world)] if parent.world is not None else []
    records += [SettingsApplied(parent.settings)] if parent.settings is not None else []
    return records
