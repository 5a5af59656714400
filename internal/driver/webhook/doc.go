// Package webhook is the driver that calls an HTTP endpoint for each object:
//
//	PUT    <url>/<resource>/<key>    with the object as JSON
//	DELETE <url>/<resource>/<key>    with its name as JSON
//
// Requests are signed as in the Standard Webhooks convention, the answer's status says what happens next, and
// the response's body is quoted, shortened, in the error. There is no driver.Checker: only a real request tells
// whether the endpoint takes the credentials. A URL of its own may say whether what was applied is healthy.
package webhook
