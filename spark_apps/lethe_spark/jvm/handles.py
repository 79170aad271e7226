"""Java's method handles, used as Java lambdas, so that Java calls Java without a call into Python."""

from typing import Any


def method(jvm: Any, class_name: str, name: str, last_parameter: str) -> Any:
    """A handle to the public method of this name whose last parameter has this type."""
    for found in java_class(jvm, class_name).getMethods():
        parameters = list(found.getParameterTypes())
        if found.getName() == name and parameters and parameters[-1].getName() == last_parameter:
            return jvm.java.lang.invoke.MethodHandles.publicLookup().unreflect(found)
    raise RuntimeError(f"this JVM has no {class_name}.{name}(…, {last_parameter})")


def getter(jvm: Any, class_name: str, name: str) -> Any:
    """A handle to the public method of this name without parameters, with type Object to Object."""
    for found in java_class(jvm, class_name).getMethods():
        if found.getName() == name and not list(found.getParameterTypes()):
            api = jvm.java.lang.invoke
            return api.MethodHandles.publicLookup().unreflect(found).asType(api.MethodType.genericMethodType(1))
    raise RuntimeError(f"this JVM has no {class_name}.{name}()")


def as_interface(jvm: Any, interface: str, handle: Any) -> Any:
    """An object of an interface with one method, which calls the handle."""
    proxies = jvm.java.lang.invoke.MethodHandleProxies
    return proxies.asInterfaceInstance(java_class(jvm, interface), handle)


def java_class(jvm: Any, name: str) -> Any:
    """The class, loaded by the class loader that has Iceberg's classes."""
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
