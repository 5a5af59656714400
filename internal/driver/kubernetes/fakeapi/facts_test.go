package fakeapi_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

func TestFactsOfTheFake(t *testing.T) {
	t.Parallel()
	checkFacts(t, fakeapi.New(t).Config())
}

// lab is a namespace of its own in a server, and clients for it.
type lab struct {
	t         *testing.T
	config    *rest.Config
	client    dynamic.Interface
	namespace string
}

// facts are what a driver may rely on: what is done, and what a server answers.
var facts = []struct {
	name string
	do   func(lab) any
	want string
}{
	{"ApplyWithAResourceVersionCreates", func(l lab) any {
		return l.apply("a", "m", `"resourceVersion":"1"`, `{"a":"1"}`, false)
	}, `{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"creationTimestamp":"TIME","name":"a","namespace":"NS","resourceVersion":"RV","uid":"UID"}}`},
	{"ApplyWithAnotherResourceVersionConflicts", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		return l.apply("a", "m", `"resourceVersion":"1"`, `{"a":"2"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again","reason":"Conflict","details":{"name":"a","kind":"configmaps"},"code":409}`},
	{"ApplyWithTheResourceVersionWrites", func(l lab) any {
		made := l.apply("a", "m", ``, `{"a":"1"}`, false).(*unstructured.Unstructured)
		return l.apply("a", "m", `"resourceVersion":"`+made.GetResourceVersion()+`"`, `{"a":"2"}`, false)
	}, `{"apiVersion":"v1","data":{"a":"2"},"kind":"ConfigMap","metadata":{"creationTimestamp":"TIME","name":"a","namespace":"NS","resourceVersion":"RV","uid":"UID"}}`},
	{"ApplyWithAUIDOfNoObject", func(l lab) any {
		return l.apply("a", "m", `"uid":"11111111-1111-1111-1111-111111111111"`, `{"a":"1"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid 11111111-1111-1111-1111-111111111111, and no existing object was found","reason":"Conflict","details":{"name":"a","kind":"configmaps"},"code":409}`},
	{"ApplyWithTheUIDOfAnother", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		return l.apply("a", "m", `"uid":"11111111-1111-1111-1111-111111111111"`, `{"a":"2"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"11111111-1111-1111-1111-111111111111\": field is immutable","reason":"Invalid","details":{"name":"a","kind":"ConfigMap","causes":[{"reason":"FieldValueInvalid","message":"Invalid value: \"11111111-1111-1111-1111-111111111111\": field is immutable","field":"metadata.uid"},{"reason":"FieldValueInvalid","message":"Invalid value: \"11111111-1111-1111-1111-111111111111\": field is immutable","field":"metadata.uid"}]},"code":422}`},
	{"ApplyWithTheUIDWrites", func(l lab) any {
		made := l.apply("a", "m", ``, `{"a":"1"}`, false).(*unstructured.Unstructured)
		return l.apply("a", "m", `"uid":"`+string(made.GetUID())+`"`, `{"a":"2"}`, false)
	}, `{"apiVersion":"v1","data":{"a":"2"},"kind":"ConfigMap","metadata":{"creationTimestamp":"TIME","name":"a","namespace":"NS","resourceVersion":"RV","uid":"UID"}}`},
	{"PatchCanReturnMetadataOnly", func(l lab) any {
		client, err := metadata.NewForConfig(l.config)
		require.NoError(l.t, err)
		force := true
		got, err := client.Resource(configMaps).Namespace(l.namespace).Patch(l.t.Context(), "a", types.ApplyPatchType,
			body("a", ``, `{"a":"1"}`), metav1.PatchOptions{FieldManager: "m", Force: &force})
		require.NoError(l.t, err)
		for i := range got.ManagedFields {
			require.False(l.t, got.ManagedFields[i].Time.IsZero())
			got.ManagedFields[i].Time = nil
		}
		return got
	}, `{"metadata":{"name":"a","namespace":"NS","uid":"UID","resourceVersion":"RV","creationTimestamp":"TIME","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]}}`},
	{"AnswersHaveMetadataOnly", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		got := l.plain("/api/v1/namespaces/" + l.namespace + "/configmaps/a").([]any)
		object := map[string]any{}
		require.NoError(l.t, json.Unmarshal([]byte(got[2].(string)), &object))
		delete(object, "metadata")
		return object
	}, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata"}`},
	{"DeleteOfAnotherUIDConflicts", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		other := types.UID("11111111-1111-1111-1111-111111111111")
		return l.delete("a", &metav1.Preconditions{UID: &other})
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (11111111-1111-1111-1111-111111111111) does not match the UID in record (UID). The object might have been deleted and then recreated","reason":"Conflict","details":{"name":"a","kind":"ConfigMap"},"code":409}`},
	{"DeleteOfAnotherResourceVersionConflicts", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		other := "1"
		return l.delete("a", &metav1.Preconditions{ResourceVersion: &other})
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (RV). The object might have been modified","reason":"Conflict","details":{"name":"a","kind":"ConfigMap"},"code":409}`},
	{"DeletedIsNotFound", func(l lab) any {
		made := l.apply("a", "m", ``, `{"a":"1"}`, false).(*unstructured.Unstructured)
		uid := made.GetUID()
		require.Nil(l.t, l.delete("a", &metav1.Preconditions{UID: &uid}))
		return l.get("a")
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"configmaps"},"code":404}`},
	{"DeleteOfNothingIsNotFound", func(l lab) any { return l.delete("a", nil) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"configmaps"},"code":404}`},
	{"OneConflict", func(l lab) any {
		l.apply("a", "other", ``, `{"a":"1","b":"1"}`, false)
		return l.apply("a", "m", ``, `{"a":"2"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Apply failed with 1 conflict: conflict with \"other\": .data.a","reason":"Conflict","details":{"causes":[{"reason":"FieldManagerConflict","message":"conflict with \"other\"","field":".data.a"}]},"code":409}`},
	{"ConflictsWithAnUpdate", func(l lab) any {
		l.apply("a", "other", ``, `{"a":"1","b":"1"}`, false)
		l.merge("a", "editor", `{"data":{"b":"3"}}`)
		return l.apply("a", "m", ``, `{"a":"2","b":"2"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Apply failed with 2 conflicts: conflicts with \"editor\" using v1:\n- .data.b\nconflicts with \"other\":\n- .data.a","reason":"Conflict","details":{"causes":[{"reason":"FieldManagerConflict","message":"conflict with \"other\"","field":".data.a"},{"reason":"FieldManagerConflict","message":"conflict with \"editor\" using v1","field":".data.b"}]},"code":409}`},
	{"AnEditTakesOurField", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1","b":"1"}`, false)
		return owners(l.merge("a", "editor", `{"data":{"a":"2"}}`))
	}, `{"Apply m":"{\"f:data\":{\"f:b\":{}}}","Update editor":"{\"f:data\":{\"f:a\":{}}}"}`},
	{"ARemovalTakesOurField", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1","b":"1"}`, false)
		return owners(l.merge("a", "editor", `{"data":{"a":null}}`))
	}, `{"Apply m":"{\"f:data\":{\"f:b\":{}}}"}`},
	{"AnEqualApplyIsSharedOwnership", func(l lab) any {
		l.apply("a", "other", ``, `{"a":"1","b":"1"}`, false)
		return owners(l.apply("a", "m", ``, `{"a":"1"}`, false))
	}, `{"Apply m":"{\"f:data\":{\"f:a\":{}}}","Apply other":"{\"f:data\":{\"f:a\":{},\"f:b\":{}}}"}`},
	{"StringDataIsStoredAsDataThatItsManagerDoesNotOwn", func(l lab) any {
		l.secret("m", `"stringData":{"a":"1","b":"1"}`)
		got := l.secret("m", `"stringData":{"a":"2"},"data":{"a":"MQ=="}`)
		return []any{got.Object["data"], got.Object["stringData"], owners(got)}
	}, `[{"a":"Mg==","b":"MQ=="},null,{"Apply m":"{\"f:data\":{\"f:a\":{}},\"f:stringData\":{\"f:a\":{}}}"}]`},
	{"AnEqualApplyWritesNothing", func(l lab) any {
		made := l.apply("a", "m", ``, `{"a":"1"}`, false)
		require.Equal(l.t, made, l.apply("a", "m", ``, `{"a":"1"}`, true))
		return nil
	}, `null`},
	{"AFieldThatWeApplyNoLongerGoes", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1","b":"1"}`, false)
		return owners(l.apply("a", "m", ``, `{"a":"1"}`, false))
	}, `{"Apply m":"{\"f:data\":{\"f:a\":{}}}"}`},
	{"ApplyIntoNoNamespace", func(l lab) any {
		l.namespace += "-missing"
		return l.apply("a", "m", ``, `{"a":"1"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"namespaces \"NS-missing\" not found","reason":"NotFound","details":{"name":"NS-missing","kind":"namespaces"},"code":404}`},
	{"GetInNoNamespace", func(l lab) any {
		l.namespace += "-missing"
		return l.get("a")
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"configmaps"},"code":404}`},
	{"ApplyIntoATerminatingNamespace", func(l lab) any {
		l.apply("stays", "m", `"finalizers":["example.com/stays"]`, `{}`, false)
		require.NoError(l.t, l.client.Resource(namespaces).Delete(l.t.Context(), l.namespace, metav1.DeleteOptions{}))
		defer l.merge("stays", "m", `{"metadata":{"finalizers":null}}`)
		return l.apply("a", "m", ``, `{"a":"1"}`, false)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" is forbidden: unable to create new content in namespace NS because it is being terminated","reason":"Forbidden","details":{"name":"a","kind":"configmaps","causes":[{"reason":"NamespaceTerminating","message":"namespace NS is being terminated","field":"metadata.namespace"}]},"code":403}`},
	{"AFinalizerHoldsADelete", func(l lab) any {
		l.apply("a", "m", `"finalizers":["example.com/stays"]`, `{"a":"1"}`, false)
		require.Nil(l.t, l.delete("a", nil))
		held := l.get("a").(*unstructured.Unstructured)
		require.NotNil(l.t, held.GetDeletionTimestamp())
		l.merge("a", "m", `{"metadata":{"finalizers":null}}`)
		return l.get("a")
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"configmaps"},"code":404}`},
	{"UnknownKind", func(l lab) any { return l.plain("/apis/example.com/v1/namespaces/" + l.namespace + "/widgets/a") }, `[404,"text/plain; charset=utf-8","404 page not found\n"]`},
	{"UnknownKindOfAKnownGroup", func(l lab) any { return l.plain("/api/v1/namespaces/" + l.namespace + "/widgets/a") }, `[404,"application/json","{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"the server could not find the requested resource\",\"reason\":\"NotFound\",\"details\":{},\"code\":404}\n"]`},
	{"UnknownKindOfAnotherKnownGroup", func(l lab) any { return l.plain("/apis/apps/v1/namespaces/" + l.namespace + "/widgets/a") }, `[404,"application/json","{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"the server could not find the requested resource\",\"reason\":\"NotFound\",\"details\":{},\"code\":404}\n"]`},
	{"UnknownVersionOfAKnownGroup", func(l lab) any { return l.plain("/apis/apps/v9/namespaces/" + l.namespace + "/deployments/a") }, `[404,"application/json","{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"the server could not find the requested resource\",\"reason\":\"NotFound\",\"details\":{},\"code\":404}\n"]`},
	{"UnknownKindOfADefinedGroup", func(l lab) any {
		group := l.define()
		return l.plain("/apis/" + group + "/v1/namespaces/" + l.namespace + "/gadgets/a")
	}, `[404,"text/plain; charset=utf-8","404 page not found\n"]`},
	{"UnknownVersionOfADefinedKind", func(l lab) any {
		group := l.define()
		return l.plain("/apis/" + group + "/v9/namespaces/" + l.namespace + "/widgets/a")
	}, `[404,"text/plain; charset=utf-8","404 page not found\n"]`},
	{"UnknownKindOfTheGroupOfDefinitions", func(l lab) any { return l.plain("/apis/apiextensions.k8s.io/v1/widgets/a") }, `[404,"application/json","{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"the server could not find the requested resource\",\"reason\":\"NotFound\",\"details\":{},\"code\":404}\n"]`},
	{"UnknownKindThroughAClient", func(l lab) any {
		widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
		_, err := l.client.Resource(widgets).Namespace(l.namespace).Get(l.t.Context(), "a", metav1.GetOptions{})
		return answerOf(nil, err)
	}, `{"metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{"causes":[{"reason":"UnexpectedServerResponse","message":"404 page not found"}]},"code":404}`},
	{"ApplyWithoutAManager", func(l lab) any { return l.apply("a", "", ``, `{"a":"1"}`, false) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch","reason":"Invalid","details":{"group":"meta.k8s.io","kind":"PatchOptions","causes":[{"reason":"FieldValueRequired","message":"Required value: is required for apply patch","field":"fieldManager"}]},"code":422}`},
	{"ApplyOfAnUnknownField", func(l lab) any { return l.apply("a", "m", ``, `{},"spec":{"a":1}`, false) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"failed to create typed patch object (/a; /v1, Kind=ConfigMap): .spec: field not declared in schema","code":500}`},
	{"ApplyOfAWrongType", func(l lab) any { return l.apply("a", "m", ``, `{"a":1}`, false) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"failed to create typed patch object (/a; /v1, Kind=ConfigMap): .data.a: expected string, got &value.valueUnstructured{Value:1}","code":500}`},
	{"ApplyOfAnotherNamespace", func(l lab) any { return l.apply("a", "m", `"namespace":"default"`, `{}`, false) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the namespace of the provided object does not match the namespace sent on the request","reason":"BadRequest","code":400}`},
	{"ApplyOfAnotherKind", func(l lab) any {
		got, err := l.maps().Patch(l.t.Context(), "a", types.ApplyPatchType,
			[]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`), metav1.PatchOptions{FieldManager: "m"})
		return answerOf(got, err)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"invalid object type: /v1, Kind=Secret","reason":"BadRequest","code":400}`},
	{"ApplyOfAnotherVersion", func(l lab) any {
		got, err := l.maps().Patch(l.t.Context(), "a", types.ApplyPatchType,
			[]byte(`{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"a"}}`), metav1.PatchOptions{FieldManager: "m"})
		return answerOf(got, err)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"invalid object type: /v2, Kind=ConfigMap","reason":"BadRequest","code":400}`},
	{"MergeOfNothing", func(l lab) any { return l.merge("a", "m", `{"data":{"a":"1"}}`) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"configmaps"},"code":404}`},
	{"UpdateOfAnotherUID", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		return l.update(`"uid":"11111111-1111-1111-1111-111111111111"`)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, Key: /registry/configmaps/NS/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: 11111111-1111-1111-1111-111111111111, UID in object meta: UID","reason":"Conflict","details":{"name":"a","kind":"configmaps"},"code":409}`},
	{"UpdateOfAnotherResourceVersion", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		return l.update(`"resourceVersion":"1"`)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again","reason":"Conflict","details":{"name":"a","kind":"configmaps"},"code":409}`},
	{"UpdateOfNothing", func(l lab) any { return l.update(``) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"configmaps"},"code":404}`},
	{"AnUpdateOwnsWhatItChanges", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		return owners(l.update(``))
	}, `{"Update editor":"{\"f:data\":{\"f:a\":{}}}"}`},
	{"AListInNoNamespaceIsEmpty", func(l lab) any {
		l.namespace += "-missing"
		got, err := l.maps().List(l.t.Context(), metav1.ListOptions{})
		require.NoError(l.t, err)
		return got
	}, `{"apiVersion":"v1","items":[],"kind":"ConfigMapList","metadata":{"resourceVersion":"RV"}}`},
	{"AnImmutableSelector", func(l lab) any {
		l.deploy(`{"a":"b"}`)
		return l.deploy(`{"a":"c"}`)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Deployment.apps \"d\" is invalid: spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable","reason":"Invalid","details":{"name":"d","group":"apps","kind":"Deployment","causes":[{"reason":"FieldValueInvalid","message":"Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable","field":"spec.selector"}]},"code":422}`},
	{"ABadName", func(l lab) any { return l.apply("A_b", "m", ``, `{"a":"1"}`, false) }, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"ConfigMap \"A_b\" is invalid: metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')","reason":"Invalid","details":{"name":"A_b","kind":"ConfigMap","causes":[{"reason":"FieldValueInvalid","message":"Invalid value: \"A_b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')","field":"metadata.name"}]},"code":422}`},
	{"CreateOfWhatExists", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"}`, false)
		made, err := l.maps().Create(l.t.Context(), configMap("a", "1"), metav1.CreateOptions{})
		return answerOf(made, err)
	}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" already exists","reason":"AlreadyExists","details":{"name":"a","kind":"configmaps"},"code":409}`},
	{"AnImmutableConfigMap", func(l lab) any {
		l.apply("a", "m", ``, `{"a":"1"},"immutable":true`, false)
		return l.apply("a", "m", ``, `{"a":"2"},"immutable":true`, false)
	}, "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"ConfigMap \\\"a\\\" is invalid: data: Forbidden: field is immutable when `immutable` is set\",\"reason\":\"Invalid\",\"details\":{\"name\":\"a\",\"kind\":\"ConfigMap\",\"causes\":[{\"reason\":\"FieldValueForbidden\",\"message\":\"Forbidden: field is immutable when `immutable` is set\",\"field\":\"data\"}]},\"code\":422}"},
}

// checkFacts does everything in facts on a server.
func checkFacts(t *testing.T, config *rest.Config) {
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	for _, fact := range facts {
		t.Run(fact.name, func(t *testing.T) {
			t.Parallel()
			namespace := &unstructured.Unstructured{}
			namespace.SetAPIVersion("v1")
			namespace.SetKind("Namespace")
			namespace.SetGenerateName("facts-")
			made, err := client.Resource(namespaces).Create(t.Context(), namespace, metav1.CreateOptions{})
			require.NoError(t, err)
			l := lab{t: t, config: config, client: client, namespace: made.GetName()}
			require.Equal(t, fact.want, l.text(fact.do(l)))
		})
	}
}

func (l lab) maps() dynamic.ResourceInterface {
	return l.client.Resource(configMaps).Namespace(l.namespace)
}

func body(name, metadata, data string) []byte {
	if metadata != "" {
		metadata = "," + metadata
	}
	return []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"` + metadata + `},"data":` + data + `}`)
}

func (l lab) apply(name, manager, metadata, data string, force bool) any {
	got, err := l.maps().Patch(l.t.Context(), name, types.ApplyPatchType, body(name, metadata, data), metav1.PatchOptions{FieldManager: manager, Force: &force})
	return answerOf(got, err)
}

func (l lab) secret(manager, fields string) *unstructured.Unstructured {
	secrets := configMaps.GroupVersion().WithResource("secrets")
	got, err := l.client.Resource(secrets).Namespace(l.namespace).Patch(l.t.Context(), "a", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},`+fields+`}`), metav1.PatchOptions{FieldManager: manager})
	require.NoError(l.t, err)
	return got
}

func (l lab) merge(name, manager, patch string) any {
	got, err := l.maps().Patch(l.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	return answerOf(got, err)
}

// define creates a CustomResourceDefinition for widgets, waits until they are served, and returns their group.
func (l lab) define() string {
	group := l.namespace + ".example.com"
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced", "names": map[string]any{"kind": "Widget", "plural": "widgets", "singular": "widget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
	_, err := l.client.Resource(definitions).Create(l.t.Context(), crd, metav1.CreateOptions{})
	require.NoError(l.t, err)
	widgets := l.client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"})
	require.Eventually(l.t, func() bool {
		_, err := widgets.List(l.t.Context(), metav1.ListOptions{})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	return group
}

func (l lab) update(metadata string) any {
	object := &unstructured.Unstructured{}
	require.NoError(l.t, object.UnmarshalJSON(body("a", metadata, `{"a":"3"}`)))
	got, err := l.maps().Update(l.t.Context(), object, metav1.UpdateOptions{FieldManager: "editor"})
	return answerOf(got, err)
}

func (l lab) deploy(labels string) any {
	text := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":` + labels +
		`},"template":{"metadata":{"labels":` + labels + `},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	got, err := l.client.Resource(deployments).Namespace(l.namespace).Patch(l.t.Context(), "d", types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: "m"})
	return answerOf(got, err)
}

func (l lab) get(name string) any {
	got, err := l.maps().Get(l.t.Context(), name, metav1.GetOptions{})
	return answerOf(got, err)
}

func (l lab) delete(name string, only *metav1.Preconditions) any {
	if err := l.maps().Delete(l.t.Context(), name, metav1.DeleteOptions{Preconditions: only}); err != nil {
		return answerOf(nil, err)
	}
	return nil
}

func (l lab) plain(path string) any {
	client, err := rest.HTTPClientFor(l.config)
	require.NoError(l.t, err)
	request, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, l.config.Host+path, http.NoBody)
	require.NoError(l.t, err)
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	answer, err := client.Do(request)
	require.NoError(l.t, err)
	defer answer.Body.Close() //nolint:errcheck // read
	text, err := io.ReadAll(answer.Body)
	require.NoError(l.t, err)
	return []any{answer.StatusCode, answer.Header.Get("Content-Type"), string(text)}
}

// answerOf is the object, or the status that the error holds.
func answerOf(object *unstructured.Unstructured, err error) any {
	if err == nil {
		return object
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		answer := status.Status()
		if answer.Details != nil { // those of conflicts come in any order
			slices.SortStableFunc(answer.Details.Causes, func(a, b metav1.StatusCause) int { return strings.Compare(a.Field, b.Field) })
		}
		return answer
	}
	return err.Error()
}

// owners is who owns which fields.
func owners(answer any) any {
	object, ok := answer.(*unstructured.Unstructured)
	if !ok {
		return answer
	}
	owned := map[string]string{}
	for _, entry := range object.GetManagedFields() {
		owned[string(entry.Operation)+" "+entry.Manager] = entry.FieldsV1.GetRawString()
	}
	return owned
}

var (
	uids     = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	times    = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	versions = regexp.MustCompile(`("resourceVersion":"|in record \()\d+`)
)

// text is the answer without what differs from run to run. The UID of tests stays: it is all ones.
func (l lab) text(answer any) string {
	if object, ok := answer.(*unstructured.Unstructured); ok {
		object = object.DeepCopy()
		object.SetManagedFields(nil)
		answer = object.Object
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	require.NoError(l.t, encoder.Encode(answer))
	text := strings.ReplaceAll(strings.TrimSpace(out.String()), l.namespace, "NS")
	text = uids.ReplaceAllStringFunc(text, func(uid string) string {
		if strings.HasPrefix(uid, "11111111-") {
			return uid
		}
		return "UID"
	})
	return versions.ReplaceAllString(times.ReplaceAllString(text, "TIME"), "${1}RV")
}
