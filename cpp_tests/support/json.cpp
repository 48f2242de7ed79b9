#include "support/json.hpp"

#include <cctype>
#include <stdexcept>

namespace tileoverlap::testing {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = parse_value();
    skip_space();
    if (at_ != text_.size()) fail("text behind the document");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error(std::string("JSON: ") + what + " at " + std::to_string(at_) + ": " +
                             std::string(text_.substr(at_, 40)));
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    skip_space();
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail("unexpected character");
  }

  Json parse_value() {
    skip_space();
    switch (peek()) {
      case '{':
        return parse_object();
      case '[':
        return parse_array();
      case '"': {
        Json value = of_kind(Json::Kind::kString);
        value.text = parse_string();
        return value;
      }
      case 't':
        return parse_word("true", Json::Kind::kBool, 1);
      case 'f':
        return parse_word("false", Json::Kind::kBool, 0);
      case 'n':
        return parse_word("null", Json::Kind::kNull, 0);
      default:
        return parse_number();
    }
  }

  static Json of_kind(Json::Kind kind) {
    Json value;
    value.kind = kind;
    return value;
  }

  Json parse_word(std::string_view word, Json::Kind kind, double number) {
    if (text_.substr(at_, word.size()) != word) fail("unknown word");
    at_ += word.size();
    Json value = of_kind(kind);
    value.number = number;
    return value;
  }

  Json parse_number() {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0) fail("no value");
    while (peek() != '\0' && std::string_view("0123456789.eE+-").find(peek()) != std::string_view::npos) ++at_;
    Json value = of_kind(Json::Kind::kNumber);
    value.text = std::string(text_.substr(begin, at_ - begin));
    size_t used = 0;
    value.number = std::stod(value.text, &used);
    if (used != value.text.size()) fail("bad number before this");
    return value;
  }

  std::string parse_string() {
    ++at_;  // the quote
    std::string result;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("open string");
      if (static_cast<unsigned char>(peek()) < 0x20) fail("control character in a string");
      if (peek() == '\\') {
        ++at_;
        const char escaped = peek();
        if (escaped == 'u') {
          const int code = std::stoi(std::string(text_.substr(at_ + 1, 4)), nullptr, 16);
          result += static_cast<char>(code);  // enough for the control characters
          at_ += 4;
        } else if (std::string_view("\"\\/bfnrt").find(escaped) == std::string_view::npos) {
          fail("unknown escape");
        } else {
          result += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
        }
      } else {
        result += peek();
      }
      ++at_;
    }
    ++at_;
    return result;
  }

  Json parse_array() {
    Json value = of_kind(Json::Kind::kArray);
    expect('[');
    if (take(']')) return value;
    do {
      value.array.push_back(parse_value());
    } while (take(','));
    expect(']');
    return value;
  }

  Json parse_object() {
    Json value = of_kind(Json::Kind::kObject);
    expect('{');
    if (take('}')) return value;
    do {
      skip_space();
      if (peek() != '"') fail("no key");
      std::string key = parse_string();
      expect(':');
      if (!value.object.emplace(std::move(key), parse_value()).second) fail("key given twice before this");
    } while (take(','));
    expect('}');
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const Json& Json::operator[](const std::string& key) const {
  const auto found = object.find(key);
  if (found == object.end()) throw std::runtime_error("JSON: no key " + key);
  return found->second;
}

Json parse_json(std::string_view text) { return Parser(text).document(); }

}  // namespace tileoverlap::testing
