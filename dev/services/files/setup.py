"""Make the bucket and the tables of the JDBC catalog, where they are missing."""

import os

from pyarrow.fs import S3FileSystem
from pyiceberg.catalog.sql import SqlCatalog

environment = os.environ

s3 = S3FileSystem(
    access_key=environment["AWS_ACCESS_KEY_ID"],
    secret_key=environment["AWS_SECRET_ACCESS_KEY"],
    endpoint_override="s3:7070",
    scheme="http",
    region="us-east-1",
    allow_bucket_creation=True,
)
s3.create_dir(environment["BUCKET"])

user, password = environment["POSTGRES_USER"], environment["POSTGRES_PASSWORD"]
catalog = SqlCatalog(
    "main",
    uri=f"postgresql+psycopg2://{user}:{password}@postgres:5432/{environment['DATABASE']}",
    warehouse=f"s3://{environment['BUCKET']}/warehouse",
    init_catalog_tables="false",
)
catalog.create_tables()
print("the bucket and the catalog's tables are there")
