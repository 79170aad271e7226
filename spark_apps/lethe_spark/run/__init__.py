"""What a run needs besides its work: input, settings of the JVM, executors, progress, result, log and errors."""
