package config

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

//go:embed default.toml
var defaults []byte

// Default is the configuration of a machine without a file.
func Default() *Config {
	c := &Config{}
	if err := decode(defaults, c); err != nil {
		panic(fmt.Sprintf("default.toml: %v", err)) // a test loads it
	}
	return c
}

// WriteDefault writes every key with its default and its meaning.
func WriteDefault(w io.Writer) error {
	_, err := w.Write(defaults)
	return err
}

// Load reads a file; keys that it does not set keep their defaults. It fails
// with all that is wrong in the file; fs.ErrNotExist when there is none.
func Load(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	c := Default()
	if err := decode(b, c); err != nil {
		return nil, decodeError(path, err)
	}
	c.fill()
	problems := c.check()
	if len(problems) == 0 {
		return c, nil
	}
	lines := lines(b)
	var errs []error
	for _, p := range problems {
		errs = append(errs, &Error{File: path, Line: lines.of(p.key), Key: p.key, Message: p.message})
	}
	return nil, errors.Join(errs...)
}

// Error is one thing that is wrong in a file.
type Error struct {
	File    string
	Line    int // 0 when it is not known
	Key     string
	Message string // with what is allowed
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	return b.String() + ": " + e.Message
}

func decode(b []byte, c *Config) error {
	return toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(c)
}

// decodeError turns what the TOML library says into Errors.
func decodeError(path string, err error) error {
	var missing *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &missing):
		var errs []error
		for i := range missing.Errors {
			e := &missing.Errors[i]
			row, _ := e.Position()
			errs = append(errs, &Error{File: path, Line: row, Key: dotted(e.Key()), Message: "unknown key; " + allowed(e.Key())})
		}
		return errors.Join(errs...)
	case errors.As(err, &bad):
		row, _ := bad.Position()
		msg := strings.TrimPrefix(bad.Error(), "toml: ")
		if t := kindOf(bad.Key()); t != "" && !strings.Contains(msg, "allowed:") {
			msg += "; allowed: " + t
		}
		return &Error{File: path, Line: row, Key: dotted(bad.Key()), Message: msg}
	}
	return fmt.Errorf("%s: %w", path, err)
}

func dotted(k toml.Key) string { return strings.Join(k, ".") }

// find follows a key through the configuration's types as far as they go, and
// returns the type there and how much of the key was used.
func find(key []string) (reflect.Type, int) {
	t := reflect.TypeFor[Config]()
	for i, k := range key {
		switch t.Kind() {
		case reflect.Map:
			t = t.Elem()
		case reflect.Struct:
			f, ok := field(t, k)
			if !ok {
				return t, i
			}
			t = f.Type
		default:
			return t, i
		}
	}
	return t, len(key)
}

func field(t reflect.Type, key string) (reflect.StructField, bool) {
	for f := range t.Fields() {
		if f.Tag.Get("toml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// allowed names the keys of the table that an unknown key stands in.
func allowed(key toml.Key) string {
	t, used := find(key)
	where := "at the top"
	if used > 0 {
		where = "in [" + dotted(key[:used]) + "]"
	}
	if t.Kind() != reflect.Struct {
		return "nothing is allowed " + where
	}
	var names []string
	for f := range t.Fields() {
		names = append(names, f.Tag.Get("toml"))
	}
	return "allowed " + where + ": " + strings.Join(names, ", ")
}

// kindOf names in words what a key holds, "" when the key is not known.
func kindOf(key toml.Key) string {
	t, used := find(key)
	if used < len(key) || len(key) == 0 {
		return ""
	}
	if t == reflect.TypeFor[Duration]() {
		return `a duration such as "1m30s"`
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list of strings"
	}
	return "a table"
}
