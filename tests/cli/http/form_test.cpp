#include "cli/http/form.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard::form_test {
namespace {

using Words = HttpWords;

TEST(HttpForm, QueriesAreDecoded) {
  EXPECT_EQ(
      read_query("a=1&b=x%20y+z&a=%3D&&c&=d"), (Words{{"a", "1"}, {"b", "x y z"}, {"a", "="}, {"c", ""}, {"", "d"}}));
  EXPECT_EQ(read_query("a=%&b=%4&c=%zz&d=100%25"), (Words{{"a", "%"}, {"b", "%4"}, {"c", "%zz"}, {"d", "100%"}}));
  EXPECT_TRUE(read_query("").empty());
}

TEST(HttpForm, ListsOfAnObjectRepeatTheirWord) {
  EXPECT_EQ(read_body("application/json", R"({"set": ["a=1", "b=2"], "n": 3})").words,
      (Words{{"set", "a=1"}, {"set", "b=2"}, {"n", "3"}}));
  EXPECT_THROW(read_body("", "[1"), Error);
  EXPECT_THROW(read_body("application/json", "[1]"), Error);
  EXPECT_EQ(read_body("application/x-www-form-urlencoded; charset=utf-8", "a=b%20c").words, (Words{{"a", "b c"}}));
}

constexpr const char* kType = "multipart/form-data; boundary=\"--X\"";

TEST(HttpForm, PartsAreWordsOrFiles) {
  const std::string body =
      "----X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nllama\r\n"
      "----X\r\ncontent-type: a/b\r\nCONTENT-DISPOSITION: form-data; name=\"run\"; "
      "filename=\"t.json\"\r\n\r\n\r\n----Y\r\n\r\n----X--\r\n";
  const HttpForm form = read_body(kType, body);
  EXPECT_EQ(form.words, (Words{{"model", "llama"}}));
  ASSERT_EQ(form.files.size(), 1U);
  EXPECT_EQ(form.files[0].field, "run");
  EXPECT_EQ(form.files[0].name, "t.json");
  EXPECT_EQ(form.files[0].content, "\r\n----Y\r\n");
}

TEST(HttpForm, BodiesThatAreCutAreRefused) {
  const std::string whole = "----X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n----X--";
  EXPECT_EQ(read_body(kType, whole).words, (Words{{"a", "b"}}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(read_body(kType, whole.substr(0, size)), Error) << size;
  }
  EXPECT_THROW(read_body("multipart/form-data", whole), Error);
  EXPECT_THROW(read_body(kType, "----X\r\n\r\nb\r\n----X--"), Error);
}

RC_GTEST_PROP(HttpFormProperty, AnyBytesAreReadOrRefused, (std::string body)) {
  for (const char* type : {kType, "application/json", "application/x-www-form-urlencoded"}) {
    try {
      read_body(type, body);
      read_body(type, "----X\r\n" + body + "\r\n----X--");
    } catch (const Error&) {
    }
  }
  const std::string name = plain_file_name(body, "file");
  RC_ASSERT(!name.empty() && name.front() != '.' && name.size() <= 80U);
  RC_ASSERT(!contains(name, '/'));
}

TEST(HttpForm, NamesOfFilesKeepTheirEnd) {
  EXPECT_EQ(plain_file_name("config.json", "x"), "config.json");
  EXPECT_EQ(plain_file_name("../../etc/passwd", "x"), "passwd");
  EXPECT_EQ(plain_file_name("C:\\a b\\my trace (1).pt.trace.json.gz", "x"), "mytrace1.pt.trace.json.gz");
  EXPECT_EQ(plain_file_name("..", "x"), "x");
  EXPECT_EQ(plain_file_name("-rf", "x"), "rf");
  EXPECT_TRUE(plain_file_name(std::string(200, 'a') + ".json", "x").ends_with("a.json"));
}

}
}
