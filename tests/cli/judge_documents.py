"""Reads {"schema": ..., "documents": [...]} on stdin; prints for each document whether the schema
accepts it, as a JSON list. The documents are JSON texts. Exit status 77: jsonschema is not installed."""

import json
import sys

try:
    import jsonschema
except ImportError:
    sys.exit(77)

task = json.load(sys.stdin)
jsonschema.Draft7Validator.check_schema(task["schema"])
validator = jsonschema.Draft7Validator(task["schema"])
print(json.dumps([validator.is_valid(json.loads(text)) for text in task["documents"]]))
