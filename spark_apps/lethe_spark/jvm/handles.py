"""Java's method handles, which stand for the lambdas that Python cannot write: Java then calls Java, without Python."""

from typing import Any


def method(jvm: Any, class_name: str, name: str, last_parameter: str) -> Any:
    """A handle to the public method of this name whose last parameter has this type."""
    for found in _class(jvm, class_name).getMethods():
        parameters = list(found.getParameterTypes())
        if found.getName() == name and parameters and parameters[-1].getName() == last_parameter:
            return jvm.java.lang.invoke.MethodHandles.publicLookup().unreflect(found)
    raise RuntimeError(f"this JVM has no {class_name}.{name}(…, {last_parameter})")


def as_interface(jvm: Any, interface: str, handle: Any) -> Any:
    """An object of an interface with one method, which calls the handle."""
    proxies = jvm.java.lang.invoke.MethodHandleProxies
    return proxies.asInterfaceInstance(_class(jvm, interface), handle)


def _class(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
