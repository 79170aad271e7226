"""Print the dependencies that pyproject.toml names, with those of some extras: requirements.py PYPROJECT [EXTRA...]

An image installs these in a layer of its own, which a change of Lethe's code leaves alone; pip has no such option.
"""

import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[2:]:
    # Without extras of the project itself: the caller names them.
    wanted += [r for r in project["optional-dependencies"][extra] if not r.startswith(project["name"])]
print(*wanted, sep="\n")
