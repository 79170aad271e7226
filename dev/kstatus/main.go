// Reads a JSON list of Kubernetes resources from stdin, and writes the list of their statuses as the kstatus library computes them.
// Flux uses this library for its health checks.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	var resources []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&resources); err != nil {
		log.Fatal(err)
	}
	statuses := make([]string, 0, len(resources))
	for _, resource := range resources {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(resource); err != nil {
			log.Fatal(err)
		}
		result, err := status.Compute(&object)
		if err != nil {
			log.Fatal(err)
		}
		statuses = append(statuses, result.Status.String())
	}
	if err := json.NewEncoder(os.Stdout).Encode(statuses); err != nil {
		log.Fatal(err)
	}
}
