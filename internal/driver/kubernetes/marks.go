package kubernetes

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// The marks of an object. Those of ApplySets are of KEP-3659, so that `kubectl` finds what belongs together.
const (
	markDomain     = "pgreconciler.github.io/"
	labelManagedBy = "app.kubernetes.io/managed-by"
	labelPartOf    = "applyset.kubernetes.io/part-of"
	labelResource  = markDomain + "resource" // a hash: names of resources may be no label
	labelObject    = markDomain + "object"   // a hash of target, resource and key
	markRow        = markDomain + "row"      // the resource and the key, encoded by driver.EncodeKey, with a space between them
	markApplied    = markDomain + "applied"  // hash of what was applied last
	markReplace    = markDomain + "replace"  // the row asks for delete and create where a field is immutable
	managedBy      = "reconciler"
	hashBytes      = 8
)

// marks are the labels and annotations of the members of one object.
type marks struct {
	labels      map[string]string
	annotations map[string]string
}

func (c *cluster) marksOf(ref driver.Ref) marks {
	return marks{
		labels: map[string]string{
			labelManagedBy: managedBy, labelPartOf: c.set.id, labelResource: resourceMark(ref.Resource), labelObject: objectMark(ref),
		},
		annotations: map[string]string{markRow: driver.EncodeKey(ref.Resource) + " " + driver.EncodeKey(ref.Key)},
	}
}

func resourceMark(resource string) string { return short([]byte(resource)) }

func objectMark(ref driver.Ref) string {
	sum := sha256.Sum256([]byte(ref.Target + "\x00" + ref.Resource + "\x00" + ref.Key))
	return hex.EncodeToString(sum[:16])
}

// short is a hash of 16 hexadecimal digits.
func short(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:hashBytes])
}

// refuseMarks returns an error if a manifest has marks that are not its to set.
func refuseMarks(body *unstructured.Unstructured) error {
	for _, texts := range []map[string]string{body.GetLabels(), body.GetAnnotations()} {
		for name := range texts {
			if name == labelPartOf || strings.HasPrefix(name, markDomain) && name != markReplace {
				return fmt.Errorf("%s is set by the driver", name)
			}
		}
	}
	return nil
}

// put adds the marks to a manifest, with the hash of what is applied.
func (m marks) put(body *unstructured.Unstructured, applied string) {
	labels, annotations := body.GetLabels(), body.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	for name, value := range m.labels {
		labels[name] = value
	}
	for name, value := range m.annotations {
		annotations[name] = value
	}
	annotations[markApplied] = applied
	body.SetLabels(labels)
	body.SetAnnotations(annotations)
}

// owner is who an object of the cluster belongs to.
type owner int

const (
	ownerNone  owner = iota // it has no marks, or not all of them
	ownerSelf               // this row
	ownerRow                // another row of this target
	ownerOther              // another target, or another ApplySet
)

// ownerOf returns whose an object is by its marks. One from which somebody has taken a part of them has none, unless they still name
// another row of this target.
func (c *cluster) ownerOf(meta *metav1.PartialObjectMetadata, ref driver.Ref) owner {
	partOf, object := meta.Labels[labelPartOf], meta.Labels[labelObject]
	mine := object == objectMark(ref)
	resource, key, named := rowOf(meta)
	switch {
	case !mine && named && object == objectMark(driver.Ref{Target: c.target, Resource: resource, Key: key}):
		return ownerRow
	case partOf != "" && partOf != c.set.id:
		return ownerOther
	case object == "" || partOf == "" && mine:
		return ownerNone
	case mine:
		return ownerSelf
	case partOf == "":
		return ownerOther
	}
	return ownerRow
}

// rowOf returns the names of the row that an object carries, and false if it carries none that are readable.
func rowOf(meta metav1.Object) (resource, key string, ok bool) {
	first, second, _ := strings.Cut(meta.GetAnnotations()[markRow], " ")
	resource, err := driver.DecodeKey(first)
	if err != nil {
		return "", "", false
	}
	key, err = driver.DecodeKey(second)
	return resource, key, err == nil
}

// setID is the identifier of an ApplySet with this parent, as KEP-3659 has it.
func setID(name, namespace, kind, group string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{name, namespace, kind, group}, ".")))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}
