// Command olm-validate says whether the Operator Lifecycle Manager accepts a bundle: olm-validate FOLDER
//
// It runs what `opm alpha bundle validate` runs on an image, on a folder: the checks of operator-registry, and those of
// OperatorHub.io. Then it runs the checks of operator-framework/api, as `operator-sdk bundle validate` does. Each finding is a
// line. The exit code is 1 if there are errors; warnings are only printed.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	"github.com/operator-framework/api/pkg/validation/errors"
	"github.com/operator-framework/operator-registry/pkg/lib/bundle"
	"github.com/sirupsen/logrus"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: olm-validate FOLDER")
		os.Exit(2)
	}
	failed := false
	for _, err := range registryErrors(os.Args[1]) {
		fmt.Println(err)
		failed = true
	}
	results, err := apiResults(os.Args[1])
	if err != nil {
		fmt.Println(err)
		failed = true
	}
	for _, result := range results {
		failed = failed || result.HasError()
		for _, finding := range append(result.Errors, result.Warnings...) {
			fmt.Println(finding)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func registryErrors(folder string) (found []error) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	validator := bundle.NewImageValidator(nil, logrus.NewEntry(quiet), "operatorhub,bundle-objects")
	for _, err := range []error{
		validator.ValidateBundleFormat(folder),
		validator.ValidateBundleContent(filepath.Join(folder, bundle.ManifestsDir)),
	} {
		if err != nil {
			found = append(found, err)
		}
	}
	return found
}

func apiResults(folder string) ([]errors.ManifestResult, error) {
	read, err := manifests.GetBundleFromDir(folder)
	if err != nil {
		return nil, err
	}
	checks := validation.DefaultBundleValidators.WithValidators(
		validation.OperatorHubV2Validator,
		validation.StandardCapabilitiesValidator,
		validation.StandardCategoriesValidator,
		validation.GoodPracticesValidator,
	)
	return append(checks.Validate(read.ObjectsToValidate()...), validation.ObjectValidator.Validate(read.Objects)...), nil
}
