"""A pattern that recognises an answer in which a language model declines.

It is for answers where no field says so. The words are those that garak's (mitigation.py, 03ac311)
and promptfoo's detectors (redteam/util.ts, 001dc28) list, and chat bots' own in other languages.
These detectors examine answers to harmful prompts; here most answers are texts that are wanted. So
an answer counts only if it has at most 700 characters and begins with a refusal of the request: not
"I can't recommend this hotel", nor a dialogue that quotes a refusal.
"""

from __future__ import annotations

import re

REFUSAL = re.compile(
    r"""(?ix)
    (?= (?s:.{1,700}) \Z ) (?:  # a longer answer is a text that begins so
    # English: an apology, if any
    (?: (?: I(?:['’]m|\ am)\ (?:\w+\ )?sorry | (?:my\ )?(?:sincere\ )?apologies | sorry | unfortunately | regrettably
          | I\ (?:\w+\ )?apologi[sz]e [^.,!?"“\n]{0,40} ) [,.!:;\s–—-]* )?
    (?: but\ | however,?\ )?
    (?:
      # the model names itself
      (?:as|I(?:['’]m|\ am)) (?:\ just|\ only|\ merely)? \ an?\ (?:responsible\ |ethical\ )?
      (?: (?:AI|artificial\ intelligence)(?:\ language)?(?:\ model|\ assistant|\ system)?
        | (?:large\ )?language\ model )
      ,? \ (?:I|and|so|trained|designed)\b
    | I\ am\ programmed\ to\b
      # it cannot, will not or must not do
    | (?: I['’]m\ afraid\ (?:that\ )? )? (?:I|we)
      (?:\ (?:really|simply|just|unfortunately|regrettably))?
      (?: \ can['’]?t | \ cannot | \ can\ not | \ won['’]t(?:\ be\ able\ to)? | \ will\ not
        | (?:\ am|['’]m|\ are|['’]re)\ (?:\w+ly\ )?(?:unable|not\ (?:able|allowed|permitted|going|programmed))\ to
        | (?:\ must|\ have\ to|\ need\ to|['’]m\ going\ to\ have\ to)(?:\ \w+ly)?\ decline(?:\ to)?
        | (?:\ do\ not|\ don['’]t)\ feel\ comfortable )
      (?! [^.!?\n]* \b(?:said|says|told|replied|answered)\b )
      \ (?:
        # what was asked of it
        (?: (?:fulfil|complet|process|hono|accommodat|satisf|respond|answer|carry|follow|proceed|continu|assist|help|do)
            \w*\ (?:\w+\ ){0,3}? )?
        (?:that|this|these|those|your|the|such|any)\ (?:\w+\ )?(?:requests?|prompts?|instructions?)\b
      | (?: (?:assist|help)(?:\ you)?(?:\ further)?\ (?:with|in|on)
          | answer | discuss | respond\ to | continue\ with | engage\ (?:in|with) )
        \ (?:that|this)(?:\ (?:task|topic|subject|question|query|conversation|type|kind))?
        \s* (?: [.,;:!–—-] | \Z | (?:as|because|since|but|due|of)\b )
      | (?:assist|help)(?:\ you)?(?:\ further)?\ (?:with|in|on)\ (?:creat|writ|generat|produc|mak)ing\b
      | assist(?:\ you)? \s*(?:[.!]|\Z)
      | comply\b
      | (?:creat|writ|generat|produc|provid|shar)\w*\ [^.!?"“\n]{0,60}? \b(?:content|material)
        \s* (?: [.,;!] | \Z | (?:that|which|of|on|like|for|involving|depicting|promoting|related|about)\b )
      | (?:creat|writ|generat|produc|provid)ing\b
      )
    )
    # German
  | (?:es\ )?tut\ mir\ (?:\w+\ )?leid\b
      (?= [^.!?\n]* \b(?:dabei|damit|Anfrage|Anforderung|Aufforderung|Frage|Inhalte?)\b )
      [^.!?"„\n]* \b(?:kann|darf)\b [^.!?\n]* \b(?:nicht|keine?n?)\b [^.!?\n]*
      \b(?:\w*helfen|behilflich|nachkommen|erfüllen|\w*antworten|\w*arbeiten|ausführen|erstellen|generieren)\b
    # French
  | (?:je\ suis\ )?(?:\w+ment\ )?désolée?,?\ (?:mais\ )?je\ ne\ (?:peux|suis)\b [^.!?"«\n]*
      \b(?: (?:cette|votre)\ (?:demande|requête|question|instruction) | (?:avec|à)\ (?:cela|ça)
          | (?:ce|de|du)\ contenu )\b
    # Spanish
  | (?:lo\ siento|lo\ lamento)(?:\ mucho)?,?\ (?:pero\ )?no\ puedo\b [^.!?"«\n]*
      \b(?: (?:es[ae]|est[ae]|tu|su)\ (?:solicitud|petición|pregunta) | con\ es[ot]o? | contenidos? )\b
    # Portuguese
  | (?:desculp[ae]|(?:sinto|lamento)\ muito|lamento),?\ (?:mas\ )?não\ posso\b [^.!?"\n]*
      \b(?: (?:es[st]a|sua)\ (?:solicitação|pergunta) | es[st]e\ pedido | com\ iss?to | com\ isso | conteúdos? )\b
    # Italian
  | (?:mi\ dispiace|scusa),?\ (?:ma\ )?non\ posso\b [^.!?"\n]*
      \b(?: (?:questa|tua|sua)\ (?:richiesta|domanda) | contenut[io] | con\ questo )\b
    # Russian
  | (?:извините|простите|к\ сожалению),?\ (?:но\ )?я\ не\ могу\b [^.!?"«\n]* (?:с\ этим|запрос|контент)
    # Chinese, Japanese, Korean
  | (?:(?:很|非常|十分)?抱歉|对不起|對不起)[，,。！!\s]*(?:但是?)?我?(?:恐怕)?(?:无法|無法|不能)
      [^。！？“\n]{0,30} (?:请求|請求|要求|问题|問題|内容|內容|协助|協助|帮助|幫助)
  | 作为(?:一个|一名|一款)?(?:人工智能|AI|大?语言模型)
  | (?:申し訳(?:ありません|ございません)|すみません) [^。「\n]{0,40} (?:リクエスト|ご要望|ご質問|内容|お手伝い)
      [^。\n]{0,30} (?:できません|できかねます|いたしかねます)
  | 죄송(?:하지만|합니다) [^."\n]{0,40} (?:요청|질문|내용|도움|도와) [^.\n]{0,30} (?:없습니다|어렵습니다)
    )"""  # noqa: E501
)
"""Matches an answer by which a model declines to write a text, from its beginning."""
