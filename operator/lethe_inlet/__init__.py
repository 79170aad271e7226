"""The inlet: reads topics of Kafka and writes what it reads into buffers, as batches. See docs/inlet.md."""
