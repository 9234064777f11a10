"""Models that answer questions: heads on any encoder, and encoder-decoders that read several passages."""
