// SPDX-License-Identifier: Apache-2.0
//
// Calls that change weights and memory, as the front passes them to its engines: what they wait
// for, what they hold back, what they answer; and bodies that are refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/dtype.h"
#include "server/fixture.h"

static int ask_admin(const server_fixture *s, const char *path, const char *body)
{
    const int fd = client_open(s);
    client_post(fd, path, body);
    return fd;
}

// The engine has done what it was asked for, or not (text).
static void done(server_fixture *s, const char *failure, msgl_admin_state state)
{
    msgl_msg m = {.type = MSGL_MSG_ADMIN_DONE};
    m.u.admin_done = (msgl_msg_admin_done){failure == NULL ? 0 : MSGL_EFORMAT, failure,
                                           failure == NULL ? 2 : 0, state};
    assert_int_equal(msgl__channel_send(s->engine, &m), 0);
}

static void expect_answer(int fd, int status, const char *says)
{
    response r = client_read(fd);
    close(fd);
    if (r.status != status || strstr(r.body, says) == NULL) {
        fail_msg("%d without %s: %d %s", status, says, r.status, r.body);
    }
    response_free(&r);
}

static void test_update(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    // It waits for what the engine has, and what comes behind it waits for it.
    uint64_t uid;
    const int before = client_ask(&s, "{\"prompt\":\"p\"}", &uid);
    const int update = ask_admin(&s, "/update_weights_from_disk",
                                 "{\"model_path\":\"/m\",\"weight_version\":\"7\"}");
    engine_expect_nothing(&s);
    const int behind = ask_admin(&s, "/v1/completions", "{\"prompt\":\"q\"}");
    engine_expect_nothing(&s);
    engine_token(&s, uid, 'x', MSGL_FINISH_LENGTH);
    response r = client_read(before);
    expect_status(r, 200);
    const msgl_msg m = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_true(m.u.admin.kind == MSGL_ADMIN_DISK && m.u.admin.flush);
    assert_string_equal(m.u.admin.path, "/m");
    assert_string_equal(m.u.admin.version, "7");
    engine_expect_nothing(&s);
    done(&s, NULL, (msgl_admin_state){.version = "7"});
    expect_answer(update, 200,
                  "{\"success\":true,\"message\":\"Succeeded to update model "
                  "weights.\",\"num_paused_requests\":2}");
    uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_token(&s, uid, 'x', MSGL_FINISH_LENGTH);
    expect_status(client_read(behind), 200);
    r = client_request(&s, "GET", "/get_weight_version", NULL);
    assert_string_equal(r.body, "{\"weight_version\":\"7\"}");
    response_free(&r);
    close(before);
    close(behind);
    server_close(&s);
}

// Choices of a request that has begun go first, whatever waits.
static void test_choices(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int fd = client_open(&s);
    client_post(fd, "/v1/completions", "{\"prompt\":\"p\",\"n\":2,\"echo\":true,\"logprobs\":0}");
    const uint64_t first = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    const int update = ask_admin(&s, "/update_weights_from_disk", "{\"model_path\":\"/m\"}");
    engine_expect_nothing(&s); // the second choice waits for the first one's prompt
    engine_token(&s, first, 'x', MSGL_FINISH_LENGTH);
    const uint64_t second = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_expect_nothing(&s);
    engine_token(&s, second, 'x', MSGL_FINISH_LENGTH);
    (void)engine_expect(&s, MSGL_MSG_ADMIN);
    done(&s, "x: tensor y: missing", (msgl_admin_state){0});
    expect_answer(update, 400, "{\"success\":false,\"message\":\"x: tensor y: missing\"");
    close(fd);
    expect_alive(&s);
    server_close(&s);
}

static void test_pause(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        msgl_pause_mode mode;
    } cases[] = {{"", MSGL_PAUSE_ABORT},
                 {"{\"mode\":\"abort\"}", MSGL_PAUSE_ABORT},
                 {"{\"mode\":\"retract\"}", MSGL_PAUSE_RETRACT},
                 {"{\"mode\":\"in_place\"}", MSGL_PAUSE_IN_PLACE}};
    server_fixture s;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        uint64_t uid;
        const int running = client_ask(&s, "{\"prompt\":\"p\"}", &uid);
        const int pause = ask_admin(&s, "/pause_generation", cases[i].body);
        if (cases[i].mode == MSGL_PAUSE_ABORT) {
            assert_int_equal(engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid, uid);
            expect_answer(running, 200, "\"abort\"");
        }
        const msgl_msg m = engine_expect(&s, MSGL_MSG_ADMIN);
        assert_true(m.u.admin.kind == MSGL_ADMIN_PAUSE && m.u.admin.mode == cases[i].mode);
        done(&s, NULL, (msgl_admin_state){.paused = true});
        expect_answer(pause, 200, "\"status\":\"ok\"");
        const int late = ask_admin(&s, "/v1/completions", "{\"prompt\":\"q\"}");
        engine_expect_nothing(&s);
        // An update waits for nobody then.
        const int update = ask_admin(&s, "/update_weights_from_disk", "{\"model_path\":\"/m\"}");
        (void)engine_expect(&s, MSGL_MSG_ADMIN);
        done(&s, NULL, (msgl_admin_state){.paused = true});
        expect_answer(update, 200, "\"success\":true");
        engine_expect_nothing(&s);
        const int go = ask_admin(&s, "/continue_generation", "{}");
        assert_int_equal(engine_expect(&s, MSGL_MSG_ADMIN).u.admin.kind, MSGL_ADMIN_CONTINUE);
        done(&s, NULL, (msgl_admin_state){0});
        expect_answer(go, 200, "continued");
        const uint64_t next = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
        engine_token(&s, next, 'x', MSGL_FINISH_LENGTH);
        expect_status(client_read(late), 200);
        close(late);
        if (cases[i].mode == MSGL_PAUSE_ABORT) continue;
        engine_token(&s, uid, 'x', MSGL_FINISH_LENGTH);
        expect_answer(running, 200, "\"length\"");
    }
    server_close(&s);
}

static void test_asleep(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int sleeping = ask_admin(&s, "/sleep?level=2", "");
    const msgl_msg m = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_true(m.u.admin.kind == MSGL_ADMIN_RELEASE && m.u.admin.discard);
    assert_int_equal(m.u.admin.tags, MSGL_MEMORY_ALL);
    done(&s, NULL, (msgl_admin_state){.unusable = "It sleeps.", .released = MSGL_MEMORY_ALL});
    expect_answer(sleeping, 200, "\"success\":true");
    response r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"p\"}");
    assert_non_null(strstr(r.body, "It sleeps."));
    expect_error(&r, 503, "weights_not_there");
    expect_status(client_request(&s, "GET", "/health", NULL), 200);
    expect_status(client_request(&s, "GET", "/ready", NULL), 503);
    r = client_request(&s, "GET", "/is_sleeping", NULL);
    assert_string_equal(r.body, "{\"is_sleeping\":true}");
    response_free(&r);
    const int waking = ask_admin(&s, "/wake_up?tags=kv_cache", "");
    const msgl_msg w = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_true(w.u.admin.kind == MSGL_ADMIN_RESUME && w.u.admin.tags == MSGL_MEMORY_CACHE);
    done(&s, NULL, (msgl_admin_state){0});
    expect_answer(waking, 200, "\"success\":true");
    expect_alive(&s);
    server_close(&s);
}

// An engine that ends answers nothing; what stands behind is done all the same.
static void test_engine_ends(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int update = ask_admin(&s, "/update_weights_from_disk", "{\"model_path\":\"/m\"}");
    (void)engine_expect(&s, MSGL_MSG_ADMIN);
    const int next = ask_admin(&s, "/continue_generation", "{}");
    msgl__channel_destroy(s.engine);
    expect_answer(update, 400, "The engine stopped meanwhile.");
    expect_answer(next, 400, "The engine is not ready.");
    s.engine = NULL;
    server_close(&s);
}

static void test_tensors(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int fd = ask_admin(&s, "/update_weights_from_tensor",
                             "{\"named_tensors\":[{\"name\":\"a\",\"dtype\":\"torch.bfloat16\","
                             "\"shape\":[1,2],\"data\":\"AAECAw==\"},{\"name\":\"b\",\"dtype\":"
                             "\"float32\",\"shape\":[],\"data\":\"BAUGBw\"}]}");
    static const char header[] = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":"
                                 "[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":"
                                 "[4,8]}}";
    msgl_msg m = engine_expect(&s, MSGL_MSG_ADMIN);
    const char *bytes = m.u.admin.bytes;
    assert_int_equal(m.u.admin.kind, MSGL_ADMIN_DATA_OF);
    assert_int_equal(m.u.admin.num_bytes, 8 + sizeof header - 1 + 8);
    assert_int_equal(bytes[0], (int)(sizeof header - 1));
    assert_memory_equal(bytes + 8, header, sizeof header - 1);
    assert_memory_equal(bytes + 8 + sizeof header - 1, "\0\1\2\3\4\5\6\7", 8);
    m = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_true(m.u.admin.kind == MSGL_ADMIN_TENSORS && m.u.admin.total == 8 + sizeof header + 7);
    done(&s, NULL, (msgl_admin_state){0});
    expect_answer(fd, 200, "{\"success\":true,\"message\":\"Succeeded to update model weights.\"}");
    server_close(&s);
}

// A trainer's group: where it is, and what it will broadcast, in the order of the request.
static void test_group(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    int fd = ask_admin(&s, "/init_weights_update_group",
                       "{\"master_address\":\"10.0.0.1\",\"master_port\":29500,\"rank_offset\":3,"
                       "\"world_size\":9,\"group_name\":\"g\",\"backend\":\"nccl\"}");
    msgl_msg m = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_true(m.u.admin.kind == MSGL_ADMIN_JOIN && m.u.admin.port == 29500);
    assert_true(m.u.admin.rank == 3 && m.u.admin.size == 9);
    assert_string_equal(m.u.admin.host, "10.0.0.1");
    assert_string_equal(m.u.admin.group, "g");
    done(&s, NULL, (msgl_admin_state){0});
    expect_answer(fd, 200, "{\"success\":true,\"message\":\"Succeeded to initialize");
    fd = ask_admin(&s, "/update_weights_from_distributed",
                   "{\"names\":[\"z\",\"a\"],\"dtypes\":[\"bfloat16\",\"torch.float32\"],"
                   "\"shapes\":[[2,3],[1]],\"group_name\":\"g\",\"weight_version\":\"8\"}");
    static const uint64_t parts[] = {2, MSGL_BF16, 6, MSGL_F32, 1};
    static const char header[] = "{\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":"
                                 "[0,12]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
                                 "\"data_offsets\":[12,16]}}";
    m = engine_expect(&s, MSGL_MSG_ADMIN);
    const char *bytes = m.u.admin.bytes;
    assert_int_equal(m.u.admin.kind, MSGL_ADMIN_DATA_OF);
    assert_int_equal(m.u.admin.num_bytes, sizeof parts + 8 + sizeof header - 1);
    assert_memory_equal(bytes, parts, sizeof parts);
    assert_int_equal(bytes[sizeof parts], (int)(sizeof header - 1));
    assert_memory_equal(bytes + sizeof parts + 8, header, sizeof header - 1);
    m = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_true(m.u.admin.kind == MSGL_ADMIN_RECEIVE && m.u.admin.flush);
    assert_string_equal(m.u.admin.group, "g");
    assert_string_equal(m.u.admin.version, "8");
    done(&s, "the link broke", (msgl_admin_state){0});
    expect_answer(fd, 400, "{\"success\":false,\"message\":\"the link broke\"}");
    fd = ask_admin(&s, "/destroy_weights_update_group", "{}");
    m = engine_expect(&s, MSGL_MSG_ADMIN);
    assert_int_equal(m.u.admin.kind, MSGL_ADMIN_LEAVE);
    assert_string_equal(m.u.admin.group, "weight_update_group");
    done(&s, NULL, (msgl_admin_state){0});
    expect_answer(fd, 200, "Succeeded to destroy");
    server_close(&s);
}

static void test_refused(void **state)
{
    (void)state;
#define TENSOR(rest) "{\"named_tensors\":[{\"name\":\"a\"," rest "}]}"
    static const struct {
        const char *path, *body, *says;
    } cases[] = {
        {"/pause_generation", "{\"mode\":\"now\"}", "'mode' must be abort, retract or in_place"},
        {"/pause_generation", "[]", "object"},
        {"/update_weights_from_disk", "{}", "'model_path' is missing"},
        {"/update_weights_from_disk", "{\"model_path\":\"\"}", "model_path"},
        {"/update_weights_from_disk", "{\"model_path\":1}", "model_path"},
        {"/update_weights_from_disk", "{\"model_path\":\"m\",\"load_format\":\"pt\"}",
         "safetensors"},
        {"/update_weights_from_disk", "{\"model_path\":\"m\",\"manifest\":{}}", "manifest"},
        {"/update_weights_from_disk", "{\"model_path\":\"m\",\"weight_version\":\"\"}", "version"},
        {"/update_weights_from_tensor", "{}", "both missing"},
        {"/update_weights_from_tensor", "{\"safetensors\":\"\",\"named_tensors\":[]}",
         "both given"},
        {"/update_weights_from_tensor", "{\"safetensors\":\"a?\"}", "base64"},
        {"/update_weights_from_tensor", "{\"named_tensors\":[]}", "array of 1 to"},
        {"/update_weights_from_tensor", "{\"named_tensors\":[1]}", "[0]' is not an object"},
        {"/update_weights_from_tensor", "{\"serialized_named_tensors\":[\"x\"]}", "pickles"},
        {"/update_weights_from_tensor",
         TENSOR("\"dtype\":\"int8\",\"shape\":[1],\"data\":\"AA==\""), "'dtype'"},
        {"/update_weights_from_tensor",
         TENSOR("\"dtype\":\"float16\",\"shape\":[-1],\"data\":\"\""), "'shape'"},
        {"/update_weights_from_tensor",
         TENSOR("\"dtype\":\"float16\",\"shape\":[4611686018427387904,4],\"data\":\"\""),
         "'shape'"},
        {"/update_weights_from_tensor",
         TENSOR("\"dtype\":\"float16\",\"shape\":[1],\"data\":\"A\""), "no base64"},
        {"/update_weights_from_tensor",
         TENSOR("\"dtype\":\"float16\",\"shape\":[2],\"data\":\"AAA=\""), "need 4"},
        {"/init_weights_update_group", "{\"master_address\":\"a\"}", "'master_port' is missing"},
        {"/init_weights_update_group",
         "{\"master_address\":\"a\",\"master_port\":1,\"world_size\":1}", "'world_size' is 1"},
        {"/update_weights_from_distributed", "{}", "'names' must be"},
        {"/update_weights_from_distributed",
         "{\"names\":[\"a\"],\"dtypes\":[\"F8\"],\"shapes\":[[1]]}", "'dtypes[0]' is not"},
        {"/update_weights_from_distributed",
         "{\"names\":[\"a\"],\"dtypes\":[\"F32\"],\"shapes\":[[1],[2]]}", "'shapes' must be"},
        {"/update_weights_from_distributed",
         "{\"names\":[\"\"],\"dtypes\":[\"F32\"],\"shapes\":[[1]]}", "'names[0]' is not"},
        {"/update_weight_version", "{}", "'new_version' is missing"},
        {"/release_memory_occupation", "{\"tags\":[\"all\"]}", "'tags' must be"},
        {"/release_memory_occupation", "{\"tags\":[]}", "'tags' must be"},
        {"/release_memory_occupation", "{\"tag\":[]}", "tag"},
        {"/sleep?level=3", "", "'level' is '3'"},
        {"/wake_up?tags=weights,all", "", "'tags' must be"},
    };
    server_fixture s;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        expect_answer(ask_admin(&s, cases[i].path, cases[i].body), 400, cases[i].says);
    }
    engine_expect_nothing(&s);
    server_close(&s);
}

// What the event loop reads is small, but for tensors.
static void test_too_large(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int status;
    } cases[] = {
        {"/pause_generation", 413},
        {"/update_weights_from_disk", 413},
        {"/update_weight_version", 413},
        {"/init_weights_update_group", 413},
        {"/destroy_weights_update_group", 413},
        {"/release_memory_occupation", 413},
        {"/resume_memory_occupation", 413},
        {"/v1/load_lora_adapter", 413},
        {"/v1/unload_lora_adapter", 413},
        {"/update_weights_from_tensor", 400},
        {"/update_weights_from_distributed", 400},
    };
    static char body[65540]; // an object with blanks
    memset(body, ' ', sizeof body - 1);
    body[0] = '{';
    body[sizeof body - 2] = '}';
    msgl_front_config cfg = msgl__front_config_default();
    server_fixture s;
    cfg.enable_lora = true;
    server_open(&s, &cfg, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = client_request(&s, "POST", cases[i].path, body);
        if (r.status != cases[i].status) fail_msg("%s: %d %s", cases[i].path, r.status, r.body);
        if (r.status == 413) assert_non_null(strstr(r.body, "allowed: at most 65536"));
        response_free(&r);
    }
    engine_expect_nothing(&s);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update),      cmocka_unit_test(test_choices),
        cmocka_unit_test(test_pause),       cmocka_unit_test(test_asleep),
        cmocka_unit_test(test_tensors),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_engine_ends), cmocka_unit_test(test_group),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
