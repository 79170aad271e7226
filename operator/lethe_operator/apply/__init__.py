"""The only writers. I/O; every act may be repeated after a crash at any line."""
