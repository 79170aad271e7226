// Reads Iceberg tables with iceberg-go, which does not know Lethe: icebergreader [METADATA_FILE SNAPSHOT_ID]...
//
// SNAPSHOT_ID: 0 for the head. Prints one JSON document, as tests/support/engines/readers.py does for the other engines: {"version": of
// iceberg-go, "tables": one of these for each table}. {"rows": [[batch id, v], ...]} or {"error": the error}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

func read(ctx context.Context, metadata, snapshot string) (rows [][2]any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	id, err := strconv.ParseInt(snapshot, 10, 64)
	if err != nil {
		return nil, err
	}
	found, err := table.NewFromLocation(ctx, table.Identifier{"t"}, metadata, io.LoadFSFunc(iceberg.Properties{}, metadata), nil)
	if err != nil {
		return nil, err
	}
	_, records, err := found.Scan(table.WithSelectedFields("batch_id", "v"), table.WithSnapshotID(id)).ToArrowRecords(ctx)
	if err != nil {
		return nil, err
	}
	rows = [][2]any{}
	for record, err := range records {
		if err != nil {
			return nil, err
		}
		ids := record.Column(record.Schema().FieldIndices("batch_id")[0])
		values := record.Column(record.Schema().FieldIndices("v")[0]).(*array.Int64)
		for i := range int(record.NumRows()) {
			rows = append(rows, [2]any{ids.ValueStr(i), values.Value(i)})
		}
		record.Release()
	}
	return rows, nil
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/apache/iceberg-go" {
				return module.Version[1:]
			}
		}
	}
	return "unknown"
}

func main() {
	ctx := context.Background()
	tables := []any{}
	for i := 1; i+1 < len(os.Args); i += 2 {
		rows, err := read(ctx, os.Args[i], os.Args[i+1])
		if err != nil {
			tables = append(tables, map[string]string{"error": err.Error()})
		} else {
			tables = append(tables, map[string]any{"rows": rows})
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"version": version(), "tables": tables}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
