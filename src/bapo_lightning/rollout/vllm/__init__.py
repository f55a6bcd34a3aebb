"""The engines that sample through vLLM: in process, and as a server."""
