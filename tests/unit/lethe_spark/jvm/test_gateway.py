"""Names of Java's packages and classes."""

from types import SimpleNamespace
from typing import Any

from lethe_spark.jvm.gateway import JavaNames
from py4j.java_gateway import JavaClass, JavaPackage
from py4j.protocol import SUCCESS_CLASS, SUCCESS_PACKAGE


class CountingClient:
    """A JVM with the class `java.util.List`, which counts the questions."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.converters: list[Any] = []
        self.gateway_property = SimpleNamespace(pool=None)

    def send_command(self, command: str) -> str:
        self.questions.append(name := command.splitlines()[2])
        return f"{SUCCESS_CLASS}java.util.List" if name == "java.util.List" else SUCCESS_PACKAGE


def test_each_package_and_class_is_looked_up_once() -> None:
    client: Any = CountingClient()
    names = JavaNames(JavaPackage("java", client, jvm_id="j"))

    lists = {id(names.util.List) for _ in range(3)}

    assert len(lists) == 1
    assert isinstance(names.util.List, JavaClass)
    assert client.questions == ["java.util", "java.util.List"]
