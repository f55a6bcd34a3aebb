"""Programs that ask an endpoint of OpenAI's protocol for completions, and are trained as they are."""
