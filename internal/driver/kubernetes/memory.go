package kubernetes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// known is what is remembered of a member.
type known struct {
	at      place
	uid     string
	applied string // hash of what was applied, or passed
	fields  string // digest of the fields that the cluster says we own; "" matches nothing
}

// passed stands for the hash of a member that the spec has lost, once the guard has let its removal pass.
const passed = "passed"

// memory is what is remembered of an object: one line for each member, in order, so that equal memories have equal texts.
type memory map[place]known

// encode returns the text: kind, namespace, name, uid, hash and digest, separated by spaces; "-" stands for an empty one.
func (m memory) encode() []byte {
	all := make([]known, 0, len(m))
	for _, k := range m {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b known) int { return a.at.compare(b.at) })
	var b bytes.Buffer
	for _, k := range all {
		fmt.Fprintf(&b, "%s %s %s %s %s %s\n", k.at.GroupKind, dash(k.at.Namespace), k.at.Name, dash(k.uid), dash(k.applied), dash(k.fields))
	}
	if b.Len() == 0 {
		return []byte{}
	}
	return b.Bytes()
}

// decode reads the text. A line that is none is left out: what memory does not know, marks find.
func decode(text []byte) memory {
	m := memory{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 6 {
			continue
		}
		at := place{GroupKind: schema.ParseGroupKind(f[0]), Namespace: undash(f[1]), Name: f[2]}
		m[at] = known{at: at, uid: undash(f[3]), applied: undash(f[4]), fields: undash(f[5])}
	}
	return m
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func undash(text string) string {
	if text == "-" {
		return ""
	}
	return text
}

// seen returns what there is to remember of an object as the cluster shows it.
func (c *cluster) seen(at place, meta *metav1.PartialObjectMetadata) known {
	k := known{at: at, uid: string(meta.UID), applied: meta.Annotations[markApplied], fields: c.fieldsOf(meta)}
	if meta.DeletionTimestamp != nil {
		k.fields = "" // it goes
	}
	return k
}

// fieldsOf returns a digest of our entry in managedFields: the fields that we own, and the version in which they are named. Another
// manager that changes or removes one of them takes it out of the entry; what others own, and what changes nothing, leaves it as it is.
func (c *cluster) fieldsOf(meta *metav1.PartialObjectMetadata) string {
	entry := c.entryOf(meta)
	if entry == nil {
		return ""
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n", entry.APIVersion)
	sum.Write(entry.FieldsV1.GetRawBytes())
	return hex.EncodeToString(sum.Sum(nil)[:hashBytes])
}

// entryOf returns our entry in managedFields; nil: there is none.
func (c *cluster) entryOf(meta *metav1.PartialObjectMetadata) *metav1.ManagedFieldsEntry {
	for i, entry := range meta.ManagedFields {
		ours := entry.Manager == c.manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
		if ours && entry.FieldsV1 != nil {
			return &meta.ManagedFields[i]
		}
	}
	return nil
}
