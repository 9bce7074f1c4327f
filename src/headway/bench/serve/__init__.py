"""A client that loads any OpenAI-compatible server with streamed requests and measures what each of them sees."""
