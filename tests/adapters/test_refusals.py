"""Answers in which a model declines in words, with status 200: they are refusals, and no
samples.
"""

import numpy as np
import pytest
import transformers

from adapters.chat import Chat
from adapters.local_text import CausalLM
from adapters.refusals import REFUSAL
from adapters.text_prompts import TextAnswers
from adapters.text_settings import Written
from pe.plugins.protocols import Failed, RandomRequest, Refused
from tests.adapters.language import tiny
from tests.endpoints.asking import impatient, serve
from tests.endpoints.chat_server import ChatServer

__all__ = ["impatient", "serve"]  # fixtures

REFUSALS = """\
I'm sorry, but I can't assist with that request.
I'm sorry, but I can't assist with that.
I’m sorry, but I can’t help with that.
Sorry, I can't help with that.
I can't assist with that.
I cannot fulfill your request.
I cannot fulfill this request. I am programmed to be a helpful and harmless AI assistant.
I can't create explicit content.
I cannot create content that depicts violence.
I'm unable to assist with that request.
I am unable to help you with this request, as it violates our guidelines.
I'm not able to help with that, as I'm only a language model.
I'm just a language model, so I can't help you with that.
As an AI language model, I cannot express opinions about hotels.
As a large language model, I don't have personal experiences.
I'm sorry, but as an AI language model, I cannot write reviews.
I apologize, but I cannot provide content of that kind.
I apologize for any confusion, but I'm not able to generate that content.
I apologize, but I don't feel comfortable writing a review about a place I have not visited.
I won't write content that promotes hate.
I must decline this request.
I'm afraid I can't help with that.
Unfortunately, I cannot comply with this request.
I'm really sorry, but I can't assist with that.
I cannot comply.
I can't satisfy your request, I'm just an AI model.
I cannot engage in this conversation.
I am not able to process that request.
I'm sorry, I can't respond to that.
I have to respectfully decline your request.
I'm sorry, but I can't help with creating fake reviews.
I cannot generate such content. However, I can help you with something else.
My apologies, but I cannot assist you with that.
I'm sorry, but I cannot answer that question.
I can’t continue with this request.
Es tut mir leid, aber dabei kann ich nicht helfen.
Es tut mir leid, aber ich kann bei dieser Anfrage nicht helfen.
Es tut mir leid, aber ich kann diese Anfrage nicht erfüllen.
Tut mir leid, ich kann Ihnen dabei nicht weiterhelfen.
Es tut mir leid, aber ich kann keine Inhalte erstellen, die Gewalt verherrlichen.
Je suis désolé, mais je ne peux pas répondre à cette demande.
Désolé, mais je ne peux pas vous aider avec cela.
Je suis désolée, mais je ne peux pas créer ce contenu.
Lo siento, pero no puedo ayudarte con eso.
Lo siento, pero no puedo cumplir con esa solicitud.
Lo siento, no puedo responder a tu pregunta.
Desculpe, mas não posso ajudar com isso.
Desculpe, não posso atender a essa solicitação.
Mi dispiace, ma non posso aiutarti con questa richiesta.
Извините, но я не могу помочь с этим запросом.
对不起，我无法回答这个问题。
抱歉，我无法协助满足该请求。
很抱歉，我不能提供此类内容。
作为一个人工智能语言模型，我无法写评论。
申し訳ありませんが、そのリクエストにはお応えできません。
죄송하지만 그 요청은 도와드릴 수 없습니다.
I'm unable to help with this as it involves private data.
I cannot assist with this type of request.
I can't generate that kind of content.
I'm sorry, I can't provide content of this nature.
I will not respond to that.
I cannot provide material that is harmful.
I'm sorry, but I can't help you with this task.
Sorry, but I can't do that request.
"""
TEXTS = """\
I'm sorry, but I can't recommend this hotel to anyone.
I can't recommend this place enough! The staff was lovely.
I'm sorry to say that the room was dirty.
I cannot give more than one star.
I can't believe how good the breakfast was.
I can't help but love this hotel.
I can't help it. I love this place.
I will not stay here again.
I won't be coming back.
I'm sorry, but the food was cold and the waiter rude.
Sorry, but two hours for a pizza is too long.
Unfortunately, the room was noisy.
Unfortunately I cannot recommend this restaurant.
I was told "I'm sorry, but I can't help you with that" and left standing.
"I'm sorry, but I can't assist with that request," said the clerk. We left.
The clerk said: I'm sorry, but I can't assist with that request.
Clerk: I'm sorry, but I can't assist you with that. Guest: Why not?
I'm sorry, but I can't help you with that, the clerk told me.
I am unable to walk long distances, so the lift was a relief.
I'm not able to sleep in such noise.
I must admit I was sceptical.
I have to say this was the best stay ever.
I cannot praise the team enough for the way they dealt with our request.
I am an AI engineer and stayed here for a conference.
As an AI researcher, I liked the quiet rooms and the fast wifi.
As an artist, I loved the light.
I don't feel safe here at night.
I can't answer for the others, but I liked it.
I do not write reviews often, but this place deserves one.
I cannot complain about the service.
I can't wait to go back.
I'm afraid I can't give it five stars, because the pool was closed.
I can't provide a better rating than three stars.
I won't write a long review, just go there.
I will not make this mistake again.
I apologize for the late review, but I was travelling. The room was fine.
I'm sorry I did not book longer.
I'm sorry but I cannot recommend it. The manager would not answer our complaint.
We can't recommend the buffet.
We cannot thank you enough for your help with the booking.
I won't answer the phone when I'm here, it is that relaxing.
Es tut mir leid, aber dieses Hotel kann ich nicht empfehlen.
Es tut mir leid, aber die Rezeption konnte mir nicht helfen.
Tut mir leid, aber das Frühstück war kalt.
Je suis désolé, mais je ne peux pas recommander cet hôtel.
Lo siento, pero no puedo recomendar este hotel.
Desculpe, mas não posso recomendar este hotel.
Mi dispiace, ma non posso consigliare questo albergo.
抱歉，我不能推荐这家酒店。
对不起，这家店的服务太差了。
申し訳ありませんが、この宿はおすすめできません。
죄송하지만 추천하고 싶지 않습니다.
Sorry, we can't accept your card, they said, and we had to leave.
I can't go on with this diet any longer.
I'm sorry for your loss. I can't imagine how hard this is for you.
I am unable to attend the meeting on Friday. Could we move it to Monday?
I won't be able to come to the party, sorry.
I cannot help you with the move on Saturday, as my back hurts.
I can't discuss the details of the case before the trial.
I can't believe they ignored the request we made.
I can't help feeling content with my choice.
I can't create content every day, and that's okay.
I can't discuss this hotel without mentioning Ana.
I can't help you with this move on Saturday.
I can't do this any more. Two hours in line!
I will not answer this man again.
I can't follow the plot of this film at all.
I can't continue this way, doctor.
We will not do that again.
I can't process that my holiday is over.
I can't share this with my mother.
I cannot share the pictures, but the pool is tiny.
I'm going to write about the staff.
As an assistant manager, I know how hard this job is.
I'm an AI fan and the robot bar made my day.
As a language teacher, I loved the accents.
I am only an assistant in this lab, and I was treated like a king.
"""
SORRY = "I'm sorry, but I can't assist with that request."


@pytest.mark.parametrize("text", REFUSALS.splitlines())
def test_a_refusal_in_words_is_recognised_in_many_languages(text):
    assert REFUSAL.match(text)


@pytest.mark.parametrize("text", TEXTS.splitlines())
def test_a_text_that_quotes_a_refusal_or_begins_a_little_like_one_is_a_text(text):
    assert REFUSAL.match(text) is None


def test_a_long_text_that_begins_like_a_refusal_is_a_text():
    assert REFUSAL.match(SORRY + " The clerk would say no more." * 20)
    assert REFUSAL.match(SORRY + " The clerk would say no more." * 30) is None


class Saying(ChatServer):
    """Says the next of these, and that it ended by itself after so many tokens."""

    def __init__(self, *said, tokens=30):
        super().__init__()
        self.said, self._tokens = list(said), tokens

    def _written(self, prompt, seed):
        return self.said.pop(0) if self.said else super()._written(prompt, seed)

    def complete(self, asked):
        answer = super().complete(asked)
        answer["usage"]["completion_tokens"] = self._tokens
        return answer

    complete.routes = ChatServer.complete.routes


@pytest.fixture
def ask(serve):
    """Ask a model that says these things for as many texts, one by one; the answers, and what is
    told of them.
    """

    def asked(*said, tokens=30, **settings):
        server = Saying(*said, tokens=tokens)
        api = Chat(
            model="m", key_env=None, base_url=f"{serve(server)}/v1", prompts="a review", **settings
        )
        seeds = np.arange(len(said) or 1, dtype=np.uint64)
        requests = [
            RandomRequest(("film",), seeds[[i]], api.draw_conditions(("film",), seeds[[i]]))
            for i in seeds
        ]
        return [api.random_api(request) for request in requests], api.describe_answers()

    return asked


def test_a_chat_model_that_declines_has_refused_and_is_counted(ask):
    answers, told = ask(
        SORRY, "The room was clean.", f'"{SORRY}"', f'"{SORRY}" is all the clerk said.'
    )
    assert [answer.missing.get(0) for answer in answers] == [
        Refused(f"the model declines: {SORRY}"),
        None,
        Refused(f"the model declines: {SORRY}"),
        None,
    ]
    assert told == "Of 4 answers: 2 × no text, because the model declines."


def test_a_local_model_that_declines_has_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerBase, "decode", lambda *_, **__: f" {SORRY}\n"
    )
    api = CausalLM(model=tiny.causal(tmp_path), prompts="a review", max_tokens=2, device="cpu")
    seeds = np.arange(2, dtype=np.uint64)
    answer = api.random_api(
        RandomRequest(("a", "a"), seeds, api.draw_conditions(("a", "a"), seeds))
    )
    assert answer.missing == dict.fromkeys((0, 1), Refused(f"the model declines: {SORRY}"))


def test_a_text_of_as_many_tokens_as_it_may_have_is_cut_off_though_its_server_says_stop(ask):
    answers, told = ask(tokens=64, max_tokens=64, cut=False)
    assert answers[0].missing[0] == Failed(
        "the text was cut off after 64 tokens: raise `max_tokens`, or set `cut: true`"
    )
    answers, told = ask(tokens=64, max_tokens=64)
    assert len(answers[0].samples) == 1
    assert told == "Of 1 answers: 1 × the end, beyond max_tokens, taken off."
    answers, told = ask(tokens=63, max_tokens=64, cut=False)
    assert (len(answers[0].samples), told) == (1, "")


def test_many_answers_that_begin_alike_are_counted(ask):
    begun = [
        f"Okay, so I need to write a review of {thing}."
        for thing in ("a hotel", "a film", "a book", "a bar")
    ]
    _, told = ask(*begun, *(f"{number} stars for the view" for number in range(12)))
    assert told == (
        "Of 16 answers: 4 × begun with 'Okay, so I need ', so look if these are texts that you "
        "want."
    )
    _, told = ask(*begun[:3], *(f"{number} stars for the view" for number in range(6)))
    assert told == ""


def test_objects_of_a_declared_form_may_begin_alike():
    form = {"fields": {"stars": {"kind": "integer", "min": 1, "max": 5}}, "texts": ["note"]}
    answers = TextAnswers(Written(prompts="a", structure=form))
    for _ in range(9):
        answers.take('{"stars": 1, "note": "a b"}', is_whole=True)
    assert answers.describe() == ""
