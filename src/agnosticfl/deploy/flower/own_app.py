# SPDX-License-Identifier: Apache-2.0
"""A client's own app, loaded once: the only code that messages of a server are given to."""

import importlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from agnosticfl.deploy.flower.connection import Connection
from agnosticfl.errors import BadInput

LOG = logging.getLogger("flwr")

CANNOT = Error(code=0, reason="its own log says why")  # an exception may quote the client's data

_config: Any = importlib.import_module("flwr.common.config")
_load: Any = importlib.import_module("flwr.clientapp.utils").get_load_client_app_fn


class OwnApp:
    """The app in a folder of this machine, and what it is told of a run.

    Of what the server says of a run, only its options count, and those that the app has.
    """

    def __init__(self, folder: Path, config: Mapping[str, str | int]):
        sys.dont_write_bytecode = True  # the folder stays as people compared it
        self.folder, self.config = folder, dict(config)
        self.name: tuple[str, str] = _config.get_metadata_from_config(
            _config.get_project_config(folder)
        )
        load = _load(default_app_ref="", app_path=str(folder), multi_app=True)
        self.app: ClientApp = load(*self.name, "")
        self._states: dict[int, RecordDict] = {}  # of run series
        self._context: Context | None = None  # of the run that is on

    def context(self, run_id: int, connection: Connection) -> Context:
        """What the app is told of a run; `BadInput` if it is one of another app."""
        if self._context is None or self._context.run_id != run_id:
            run = connection.get_run(run_id)
            if (run.fab_id, run.fab_version) != self.name:
                raise BadInput(
                    f"the server's run is of {run.fab_id} {run.fab_version};"
                    f" this client has {' '.join(self.name)}"
                )
            self._context = Context(
                run_id=run_id,
                node_id=connection.node,
                node_config=dict(self.config),
                state=self._states.setdefault(run.series_id, RecordDict()),
                run_config=_config.get_fused_config_from_dir(self.folder, run.override_config),
                series_id=run.series_id,
            )
        return self._context

    def answer(self, message: Message, connection: Connection) -> Message:
        """What the app answers, or that it cannot; why stays here."""
        try:
            return self.app(message, self.context(message.metadata.run_id, connection))
        except BadInput as error:
            LOG.error("this client cannot answer: %s", error)
        except Exception:
            LOG.exception("this client cannot answer")
        return Message(CANNOT, reply_to=message)
