#!/usr/bin/env python3
"""A verifier of completions to start from: rewards wanted words, and brevity.

When to use it: as the command of a verifier of kind `external`, for records such as
{"wanted": ["gram", "kilogram"], "words_max": 50}. worker/reward/README.md has the protocol.
"""
import json
import sys


def judge(record, completion):
    wanted = record.get("wanted")
    if not isinstance(wanted, list):
        given = json.dumps(record)[:100]
        return {"error": f"a record has 'wanted', a list of words, and this one is {given}"}
    words = completion.lower().split()
    found = [word for word in wanted if word.lower() in words]
    long = len(words) > record.get("words_max", 50)
    answer = {"components": {"wanted": len(found) / max(1, len(wanted)), "brevity": -0.5 if long else 0}}
    if len(found) < len(wanted):
        answer["invalid"] = "not said: " + ", ".join(set(wanted) - set(found))
    return answer


for line in sys.stdin:
    request = json.loads(line)
    answer = judge(request["record"], request["completion"])
    print(json.dumps({"id": request["id"], **answer}), flush=True)
