"""The server of decoders: `python -P -m lethe.decoder FD`. FD is its end of a socket that it has inherited."""

import socket
import sys

from lethe.process import without_pandas

without_pandas()

from lethe.decoder.child import serve  # noqa: E402

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
