from dataclasses import dataclass


@dataclass
class AssistantMessage:
    content: str
    role: str = "assistant"
