"""A process that decodes bytes from outside, because they may end it, and the limits of what they may cost.

`limits` has the limits. `child` is the process, and the server that forks it. `process` starts and watches one for its parent.
`supervisor` lets such processes decode files or messages one after another, and finds the one that ended a process.
"""
