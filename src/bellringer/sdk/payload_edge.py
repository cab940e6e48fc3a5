"""Encrypts payloads where they leave the app, and decrypts results where they return to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bellringer.codecs import PayloadCodec, decrypt, encrypt_arguments
from bellringer.core.jobs import HTTP_TASK, WORKFLOW_TASK, Definition
from bellringer.core.messages import Message
from bellringer.core.payload import check_payload
from bellringer.engine.send import WorkflowSend


@dataclass(frozen=True, slots=True)
class PayloadEdge:
    """The codec of an app, and its tenant, to which all values are bound."""

    codec: PayloadCodec
    tenant: str

    def message(self, message: Message) -> Message:
        arguments = msgspec.json.decode(message.payload)
        args, kwargs = self._encrypt(arguments["args"], arguments["kwargs"], message.task)
        payload = check_payload({"args": args, "kwargs": kwargs})
        return msgspec.structs.replace(message, payload=payload)

    def definition(self, definition: Definition) -> Definition:
        """Return a job with encrypted arguments. HTTP targets have secrets of their own."""
        if definition.task == HTTP_TASK:
            return definition
        args, kwargs = self._encrypt(definition.args, definition.kwargs, definition.task)
        return replace(definition, args=args, kwargs=kwargs)

    def workflow(self, request: WorkflowSend) -> WorkflowSend:
        _, params = self._encrypt((), request.params, WORKFLOW_TASK)
        return replace(request, params=params)

    def arguments(self, kwargs: Mapping[str, Any], task: str) -> dict[str, Any]:
        return self._encrypt((), kwargs, task)[1]

    def result(self, result: Any) -> Any:
        return decrypt(self.codec, result, tenant=self.tenant)

    def _encrypt(self, args: Sequence[Any], kwargs: Mapping[str, Any], task: str) -> tuple[list[Any], dict[str, Any]]:
        return encrypt_arguments(self.codec, args, kwargs, tenant=self.tenant, task=task)
