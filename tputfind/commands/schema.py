"""`tputfind schema`: print the JSON Schema of a record."""

import json
import sys

import msgspec

from tputfind.commands.console import Given
from tputfind.record.record import Record


def main(given: Given, *, show_traceback: bool) -> int:  # noqa: ARG001  # as every command is called
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Record)}
    sys.stdout.write(f"{json.dumps(schema, indent=1)}\n")
    return 0
