//go:build kubernetes

// Package kubetest runs a real Kubernetes control plane for tests: etcd, kube-apiserver, and the controllers for namespaces,
// garbage, deployments and replica sets. There are no nodes, so no pod ever runs. `make test/kubernetes` builds the programs
// and sets RECONCILER_TEST_KUBERNETES to their folder.
//
// Start returns the cluster that all tests of a binary share, New one that a test may stop. TestMain calls Stop.
package kubetest
