# SPDX-License-Identifier: Apache-2.0
set(CHAT_TEMPLATE_SOURCES
  chat_template.c chat_template_load.c
  jinja_mem.c jinja_lex.c jinja_parse.c jinja_parse_expr.c jinja_scope.c
  jinja_value.c jinja_container.c jinja_string.c jinja_unicode.c jinja_repr.c jinja_json.c
  jinja_loads.c
  jinja_eval.c jinja_exec.c jinja_ops.c jinja_call.c
  jinja_filters.c jinja_filters_seq.c jinja_tests.c jinja_methods.c jinja_globals.c
  jinja_format.c)
