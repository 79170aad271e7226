"""Experiment."""
import lethe, lethe_spark
from tests.spark.support.story import Story
from tests.spark.support.all_types import alone

def test_exp(spark, lake):
    for alone_ in (True, False):
        s = Story.begin(spark, lake, format_version=3)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {s.catalog}.air")
        spark.sql(f"CREATE TABLE {s.full_name} (batch_id STRING, v BIGINT, d DOUBLE) USING iceberg TBLPROPERTIES ('format-version'='3','write.metadata.metrics.column.batch_id'='full')")
        spark.sql(f"ALTER TABLE {s.full_name} WRITE ORDERED BY batch_id")
        spark.sql(f"INSERT INTO {s.full_name} VALUES ('A',1, double('NaN')),('B',2, 0.0d),('B',3,-0.0d)")
        jvm = spark._jvm
        java = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, s.full_name)
        T = jvm.org.apache.iceberg.types.Types
        E = jvm.org.apache.iceberg.expressions.Expressions
        java.updateSchema().addColumn("c", T.IntegerType.get(), "doc", E.lit(7)).updateColumnDefault("c", E.lit(8)).commit()
        java.updateSchema().addColumn("dt", T.DateType.get(), "doc", E.lit("2020-01-02").to(T.DateType.get())).addColumn("dec", T.DecimalType.of(9,2), "doc", E.lit(jvm.java.math.BigDecimal("1.25"))).commit()
        spark.sql(f"REFRESH TABLE {s.full_name}")
        print(spark.table(s.full_name).collect())
        print(lethe_spark.read(spark, s.full_name).collect())
        print(lethe.scan(s.full_name).to_arrow().to_pylist())
        s.revert("A")
        print(lethe_spark.read(spark, s.full_name).collect())
        if alone_: alone(s)
        else: s.vacuum()
        print(alone_, spark.table(s.full_name).collect())
        print(lethe.scan(s.full_name).to_arrow().to_pylist())
    t = "lite.air.floats"
    for files in (1, 9):
        spark.sql(f"DROP TABLE IF EXISTS {t}")
        spark.sql(f"CREATE TABLE {t} (i INT, x DOUBLE) USING iceberg")
        vals = ["double('NaN')","0.0d","-0.0d","1.0d","3.0d","double('Infinity')","double('-Infinity')","NULL","-2.0d"]
        df = spark.sql(f"SELECT * FROM VALUES " + ",".join(f"({i},{v})" for i, v in enumerate(vals)) + " AS t(i,x)")
        if files == 1: df.coalesce(1).writeTo(t).append()
        else:
            for i in range(9): df.where(f"i={i}").coalesce(1).writeTo(t).append()
        for f in ["x > 1.0d","x >= 1.0d","x = 0.0d","x = -0.0d","x in (0.0d, 2.0d)","x in (-0.0d,2.0d)","x < 0.0d","x <= 0.0d","x > 0.0d","x >= 0.0d", "x > -0.0d", "x = double('NaN')","x not in (3.0d,1.0d)","not (x < 1.0d)","not (x <= 1.0d)","x <> 0.0d","x != double('NaN')","x >= double('NaN')","x > double('Infinity')", "x < double('NaN')", "isnan(x)", "not isnan(x)", "x <= -0.0d", "not (x > -0.0d)", "not (x >= 0.0d)", "x < -0.0d"]:
            got = sorted(r.i for r in spark.sql(f"select i from {t} where {f}").collect())
            true = sorted(r.i for r in df.where(f).collect())
            print(files, f, got, "" if got == true else f"WRONG {true}")
    assert 0
