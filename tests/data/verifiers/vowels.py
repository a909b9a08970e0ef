"""An external verifier: the share of vowels among a completion's letters, which differs whatever a
model knows, and which a small one can be taught. Argument: seconds that each answer takes."""
import json
import sys
import time

pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0
for line in sys.stdin:
    asked = json.loads(line)
    time.sleep(pause)
    letters = [c for c in asked["completion"].lower() if c.isalpha()]
    share = sum(c in "aeiou" for c in letters) / max(1, len(letters))
    print(json.dumps({"id": asked["id"], "components": {"vowels": share}}), flush=True)
