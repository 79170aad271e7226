"""How many files a registering run of the committer may have. The operator asks within these limits, and the committer checks
them. Pure.
"""

from typing import Final

# Data files of the batches of a run. A Spark Job, too, reads the footers of so many files in its driver.
FILES_AT_MOST: Final = 1000
# Objects in the buffer, which the run lists completely: some seconds of one core.
OBJECTS_AT_MOST: Final = 20_000
