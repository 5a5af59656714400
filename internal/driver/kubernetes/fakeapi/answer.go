package fakeapi

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// answer carries out a request that is no watch.
func (s *Server) answer(r *http.Request, req request) (int, any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, nil, apierrors.NewBadRequest(err.Error())
	}
	content, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if strings.Contains(content, "protobuf") && len(body) > 0 {
		return 0, nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, r.Method, req.kind.groupResource(), req.name, "send JSON", 0, false)
	}
	switch {
	case r.Method == http.MethodGet && req.name == "":
		list, err := s.list(req, r.URL.Query())
		return http.StatusOK, list, err
	case r.Method == http.MethodGet:
		return s.get(req)
	case r.Method == http.MethodPost && req.name == "":
		return s.sent(req, body, s.create)
	case r.Method == http.MethodPut && req.name != "":
		return s.sent(req, body, s.update)
	case r.Method == http.MethodPatch && req.name != "":
		return s.answerPatch(r, req, types.PatchType(content), body)
	case r.Method == http.MethodDelete && req.name != "" && req.sub == "":
		return s.answerDelete(req, body)
	}
	return 0, nil, apierrors.NewMethodNotSupported(req.kind.groupResource(), strings.ToLower(r.Method))
}

func (s *Server) get(req request) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.findLocked(req)
	if object == nil {
		return 0, nil, apierrors.NewNotFound(req.kind.groupResource(), req.name)
	}
	return http.StatusOK, req.show(object), nil
}

func (s *Server) sent(
	req request, body []byte, write func(request, *unstructured.Unstructured) (*unstructured.Unstructured, error),
) (int, any, error) {
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return 0, nil, apierrors.NewBadRequest(err.Error())
	}
	code := http.StatusOK
	if req.name == "" {
		code = http.StatusCreated
	}
	object, err := write(req, object)
	if err != nil {
		return 0, nil, err
	}
	return code, req.show(object), nil
}

func (s *Server) answerPatch(r *http.Request, req request, patchType types.PatchType, body []byte) (int, any, error) {
	query := r.URL.Query()
	options := &metav1.PatchOptions{FieldManager: query.Get("fieldManager"), FieldValidation: query.Get("fieldValidation")}
	if force, err := strconv.ParseBool(query.Get("force")); err == nil {
		options.Force = &force
	}
	switch patchType {
	case types.ApplyYAMLPatchType, types.MergePatchType, types.StrategicMergePatchType, types.JSONPatchType:
	default:
		return 0, nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", req.kind.groupResource(), req.name,
			"unknown patch type "+string(patchType), 0, false)
	}
	object, created, err := s.patch(req, patchType, body, options)
	if err != nil {
		return 0, nil, err
	}
	if created {
		return http.StatusCreated, req.show(object), nil
	}
	return http.StatusOK, req.show(object), nil
}

func (s *Server) answerDelete(req request, body []byte) (int, any, error) {
	options := &metav1.DeleteOptions{}
	if len(body) > 0 {
		if err := json.Unmarshal(body, options); err != nil {
			return 0, nil, apierrors.NewBadRequest(err.Error())
		}
	}
	object, done, err := s.remove(req, options)
	if err != nil {
		return 0, nil, err
	}
	if !done {
		return http.StatusOK, req.show(object), nil
	}
	return http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: req.name, Group: req.kind.Group, Kind: req.kind.resource, UID: object.GetUID()},
	}, nil
}

// show returns the object in the version and the form that the request asks for.
func (r request) show(object *unstructured.Unstructured) any {
	object = r.kind.version(object)
	if !r.metadataOnly {
		return object.Object
	}
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.Object["metadata"]}
}

// writeError writes the error as the real server does: anything but a Status is an internal error with its bare text.
func writeError(w http.ResponseWriter, err error) {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	if answer := apierrors.APIStatus(nil); errors.As(err, &answer) {
		status = answer.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	writeJSON(w, int(status.Code), status)
}
