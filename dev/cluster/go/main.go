// One binary for a whole local Kubernetes node.
//
// The control plane, the node agents, etcd, kubectl and kubeadm are all Go modules, so one program that links them
// needs no release download and shares the hundred megabytes that separate binaries would each carry. It acts on the
// name it is called by (kube-apiserver -> kubernetes), or on its first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func component(newCommand func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(newCommand())) }
}

func main() {
	programs := map[string]func(){
		"kube-apiserver":          component(apiserver.NewAPIServerCommand),
		"kube-controller-manager": component(controllermanager.NewControllerManagerCommand),
		"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kube-proxy":              component(proxy.NewProxyCommand),
		"kubelet":                 component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
		"kubectl": func() {
			if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
				util.CheckErr(err)
			}
		},
		"kubeadm": func() {
			if err := kubeadm.Run(); err != nil {
				util.CheckErr(err)
			}
		},
		"etcd": func() { etcdmain.Main(os.Args) },
	}
	run, known := programs[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		if run, known = programs[os.Args[1]]; known {
			os.Args = os.Args[1:]
		}
	}
	if !known {
		fmt.Fprintln(os.Stderr, "usage: kubernetes PROGRAM [ARGUMENT...], PROGRAM being one of:")
		for name := range programs {
			fmt.Fprintln(os.Stderr, "  "+name)
		}
		os.Exit(2)
	}
	run()
}
