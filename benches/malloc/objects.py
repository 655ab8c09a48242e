"""Objects, strings, lists and dictionaries, all from malloc (PYTHONMALLOC=malloc)."""

import json

words = [f"word {number % 5000} of {number}" for number in range(150_000)]
counts: dict[str, int] = {}
for word in words:
    for part in word.split():
        counts[part] = counts.get(part, 0) + 1
text = json.dumps([{"name": word, "value": index} for index, word in enumerate(words)])
back = json.loads(text)
back.sort(key=lambda item: item["name"][::-1])
assert len(back) == len(words)
