// Starts a Trino server. Maven Central has Trino's libraries, but not the artifact with such a class.
void main() {
    Class<?> server = io.trino.server.Server.class;
    new io.trino.server.Server().start(server.getPackage().getImplementationVersion());
}
